#include "ops/shared/convolution.h"

#include "ops/conv/arguments.h"

namespace onnxbolt {

using ort::Shape;

Convolution::Convolution(const Op& op, const Attributes& attributes, size_t rank)
    : op_(op), window_(attributes), groups_(attributes.Int("group", 1)), rank_(rank) {}

Window Convolution::Over(const Shape& x, const Shape& weight) const {
  RequireRank("x", x, rank_);
  RequireRank("weight", weight, x.size());
  return window_.Over("weight", weight);
}

Shape Convolution::Output(const Shape& x, const Shape& weight) const {
  const Window over = Over(x, weight);
  const Image image(x);
  const int64_t p = over.Extent(0, image.h), q = over.Extent(1, image.w);
  RequireChannels(x, weight, groups_);
  return rank_ == 3 ? Shape{image.n, q, weight[0]} : Shape{image.n, p, q, weight[0]};
}

Symbols Convolution::Names(Symbols x, const Shape& x_shape, const Shape& weight) const {
  x.back() = "";
  return Over(x_shape, weight).Names(std::move(x));
}

ConvArguments Convolution::Arguments(const Tensors& t) const {
  const Window window = Over(t.x_shape, t.weight_shape);
  const Image x(t.x_shape), y(t.y_shape);
  ConvArguments a{};
  a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
  a.q = AsInt(y.w), a.k = AsInt(y.c);
  a.r = AsInt(window.kernel[0]), a.s = AsInt(window.kernel[1]);
  a.pad_top = AsInt(window.begin[0]), a.pad_left = AsInt(window.begin[1]);
  a.pad_bottom = AsInt(window.end[0]), a.pad_right = AsInt(window.end[1]);
  a.stride_h = AsInt(window.stride[0]), a.stride_w = AsInt(window.stride[1]);
  a.dilation_h = AsInt(window.dilation[0]), a.dilation_w = AsInt(window.dilation[1]);
  a.groups = AsInt(groups_);
  a.x = t.x_data, a.filter = t.weight_data, a.y = t.y_data;
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  a.epilogue = t.epilogue;
  a.x_nchw = op_.nchw_input, a.y_nchw = op_.to_nchw;
  return a;
}

}  // namespace onnxbolt
