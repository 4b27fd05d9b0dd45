#include "ops/shared/convolution.h"

#include "ops/conv/arguments.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// The depth of a convolution of volumes. Where an output reads one slice it becomes the batch's,
// and where it reads one column of pixels, the columns are the pixels of an image of height `x`
// (onnxbolt/graph/volumes.py).
void AddDepth(const Window& window, int64_t x, int64_t y, ConvArguments& a) {
  if (window.IsPoint(kDepth)) {
    a.n = AsInt(a.n * x);
  } else if (window.IsPoint(kHeight) && window.IsPoint(kWidth)) {
    a.w = AsInt(int64_t{a.h} * a.w), a.q = AsInt(int64_t{a.p} * a.q);
    a.h = AsInt(x), a.p = AsInt(y), a.r = AsInt(window.kernel[kDepth]);
    a.pad_top = AsInt(window.begin[kDepth]), a.pad_bottom = AsInt(window.end[kDepth]);
    a.stride_h = AsInt(window.stride[kDepth]), a.dilation_h = AsInt(window.dilation[kDepth]);
  } else {
    a.depth = {AsInt(x),
               AsInt(window.kernel[kDepth]),
               AsInt(y),
               AsInt(window.begin[kDepth]),
               AsInt(window.end[kDepth]),
               AsInt(window.stride[kDepth]),
               AsInt(window.dilation[kDepth])};
  }
}

}  // namespace

Convolution::Convolution(const Op& op, const Attributes& attributes, size_t rank)
    : op_(op), window_(attributes), groups_(attributes.Int("group", 1)), rank_(rank) {}

Window Convolution::Over(const Shape& x, const Shape& weight) const {
  RequireRank("x", x, rank_);
  RequireRank("weight", weight, x.size());
  return window_.Over("weight", weight);
}

Shape Convolution::Output(const Shape& x, const Shape& weight) const {
  const Window over = Over(x, weight);
  RequireChannels(x, weight, groups_);
  Shape y = x;
  for (size_t i = 1; i + 1 < rank_; ++i)
    y[i] = over.Extent(static_cast<int>(kAxes + i + 1 - rank_), x[i]);
  y.back() = weight[0];
  return y;
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
  a.r = AsInt(window.kernel[kHeight]), a.s = AsInt(window.kernel[kWidth]);
  a.pad_top = AsInt(window.begin[kHeight]), a.pad_left = AsInt(window.begin[kWidth]);
  a.pad_bottom = AsInt(window.end[kHeight]), a.pad_right = AsInt(window.end[kWidth]);
  a.stride_h = AsInt(window.stride[kHeight]), a.stride_w = AsInt(window.stride[kWidth]);
  a.dilation_h = AsInt(window.dilation[kHeight]), a.dilation_w = AsInt(window.dilation[kWidth]);
  AddDepth(window, x.d, y.d, a);
  a.groups = AsInt(groups_);
  a.x = t.x_data, a.filter = t.weight_data, a.y = t.y_data;
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  a.epilogue = t.epilogue;
  a.x_nchw = op_.nchw_input, a.y_nchw = op_.to_nchw;
  return a;
}

}  // namespace onnxbolt
