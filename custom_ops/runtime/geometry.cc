#include "runtime/geometry.h"

namespace onnxbolt {
namespace {

using ort::Shape;
using ort::ToString;

[[noreturn]] void Refuse(const std::string& text) { throw ort::Error(ort::kInvalidArgument, text); }

void RequireRank(const char* what, const Shape& shape, size_t rank) {
  if (shape.size() != rank)
    Refuse(std::string(what) + " has shape " + ToString(shape) + ", expected rank " +
           std::to_string(rank));
}

void RequireChannels(const Shape& x, const Shape& weight, int64_t groups) {
  const int64_t channels = x.back(), per_group = weight.back();
  if (channels != kUnknown && per_group != kUnknown && channels != per_group * groups) {
    Refuse("x " + ToString(x) + " and weight " + ToString(weight) + " do not fit: " +
           std::to_string(channels) + " channels, expected " + std::to_string(per_group * groups));
  }
}

// Puts 1 or 2 numbers into the last places of a pair, so that a one-dimensional attribute is the
// width's.
void Assign(const char* what, const int64_t* values, size_t rank, int64_t (&pair)[2]) {
  if (rank < 1 || rank > 2)
    Refuse(std::string(what) + " has " + std::to_string(rank) +
           " spatial dimensions, expected 1 or 2");
  for (size_t i = 0; i < rank; ++i) pair[2 - rank + i] = values[i];
}

void AssignIfPresent(const Attributes& attributes, const char* name, int64_t (&pair)[2]) {
  const Shape values = attributes.Ints(name);
  if (!values.empty()) Assign(name, values.data(), values.size(), pair);
}

Window ReadWindow(const Attributes& attributes) {
  Window window;
  AssignIfPresent(attributes, "kernel_shape", window.kernel);
  AssignIfPresent(attributes, "strides", window.stride);
  AssignIfPresent(attributes, "dilations", window.dilation);
  if (const Shape pads = attributes.Ints("pads"); !pads.empty()) {
    const size_t rank = pads.size() / 2;
    Assign("pads", pads.data(), rank, window.begin);
    Assign("pads", pads.data() + rank, rank, window.end);
  }
  for (int axis = 0; axis < 2; ++axis) {
    if (window.stride[axis] < 1 || window.dilation[axis] < 1)
      Refuse("strides and dilations have to be 1 or more");
  }
  window.ceil_mode = attributes.Int("ceil_mode", 0) != 0;
  return window;
}

Resizing ReadResizing(Kind kind, const Attributes& attributes) {
  Resizing resizing{attributes.Ints("sizes"), attributes.Floats("scales"),
                    attributes.Ints("sampling"), attributes.Float("cubic_coeff_a", -0.75f),
                    attributes.Int("exclude_outside", 0) != 0};
  if (kind != Kind::kResize) return resizing;
  if (resizing.sizes.size() + resizing.scales.size() != 2)
    Refuse("a resizing has two sizes or two scales");
  if (resizing.sampling.size() != 3) Refuse("attribute sampling has to have three numbers");
  return resizing;
}

Shape LayoutOutput(Kind kind, const Shape& x, int64_t padding) {
  if (x.size() < 3) Refuse("x has shape " + ToString(x) + ", expected rank 3 or more");
  Shape y = ChangeLayout(kind, x);
  int64_t& channels = kind == Kind::kToNhwc ? y.back() : y[1];
  if (channels == kUnknown) return y;
  channels += kind == Kind::kToNhwc ? padding : -padding;
  if (padding < 0 || channels < 1)
    Refuse("x has shape " + ToString(x) + ", which does not fit a padding of " +
           std::to_string(padding));
  return y;
}

}  // namespace

int64_t Window::Extent(int axis, int64_t input) const {
  if (input == kUnknown) return kUnknown;
  const int64_t span = input + begin[axis] + end[axis] - dilation[axis] * (kernel[axis] - 1) - 1;
  if (span < 0) return 0;
  if (!ceil_mode) return span / stride[axis] + 1;
  const int64_t extent = (span + stride[axis] - 1) / stride[axis] + 1;
  // ONNX, MaxPool and AveragePool: no window begins in the padding at the end
  return (extent - 1) * stride[axis] >= input + begin[axis] ? extent - 1 : extent;
}

bool Window::Keeps(int axis) const {
  return stride[axis] == 1 && begin[axis] + end[axis] == dilation[axis] * (kernel[axis] - 1);
}

int64_t Resizing::Extent(int axis, int64_t input) const {
  if (!sizes.empty()) return sizes[axis];
  return input == kUnknown
             ? kUnknown
             : static_cast<int64_t>(scales[axis] *
                                    static_cast<float>(input));  // as ONNX Runtime does it
}

float Resizing::Scale(int axis, int64_t input) const {
  return sizes.empty() ? scales[axis] : static_cast<float>(sizes[axis]) / static_cast<float>(input);
}

Image::Image(const Shape& shape)
    : n(shape.front()),
      h(shape.size() == 3 ? 1 : shape[1]),
      w(shape[shape.size() - 2]),
      c(shape.back()) {}

Geometry::Geometry(Kind node_kind, const Attributes& attributes)
    : kind(node_kind),
      window(ReadWindow(attributes)),
      groups(attributes.Int("group", 1)),
      count_include_pad(attributes.Int("count_include_pad", 0) != 0),
      padding(attributes.Int("padding", 0)),
      resizing(ReadResizing(node_kind, attributes)) {
  const Shape around = attributes.Ints("around");  // as Pad's pads
  before = around.empty() ? 0 : around[around.size() / 2 - 1],
  after = around.empty() ? 0 : around.back();
  if (around.size() % 2 != 0 || before < 0 || after < 0) Refuse("attribute around is damaged");
  const Shape channels = attributes.Ints("channels");
  begin = channels.size() == 2 ? channels[0] : 0, end = channels.size() == 2 ? channels[1] : 0;
  if (channels.size() % 2 != 0 || begin < 0 || end < begin) Refuse("attribute channels is damaged");
}

Window Geometry::WindowOver(const Shape& x, const Shape& weight) const {
  RequireRank("x", x, kind == Kind::kConv1d ? 3 : 4);
  Window over = window;
  if (IsConv(kind)) {
    RequireRank("weight", weight, x.size());
    Assign("weight", weight.data() + 1, weight.size() - 2, over.kernel);
  } else if (kind == Kind::kGlobalAveragePool) {
    Assign("x", x.data() + 1, 2, over.kernel);
  }
  return over;
}

Shape Geometry::Output(const Shape& x, const Shape& weight) const {
  if (IsGemm(kind)) {
    RequireRank("weight", weight, 2);
    if (x.empty()) Refuse("x is a scalar, expected [.., K]");
    const int64_t whole =
        (x.back() + 7) / 8 * 8;  // rows of 16 bytes, for kernels that read x's of any length
    if (kind == Kind::kGemm && weight[1] != whole) RequireChannels(x, weight, 1);
    Shape y = x;
    y.back() = weight[0];
    return y;
  }
  if (IsLayout(kind)) return LayoutOutput(kind, x, padding);
  if (kind == Kind::kElementwise) return x;
  if (kind == Kind::kSqueezeExcite) {
    RequireRank("x", x, 4);
    RequireRank("weight", weight, 2);
    if (x.back() != kUnknown && weight[0] != kUnknown && x.back() != weight[0])
      Refuse("x " + ToString(x) + " and weight " + ToString(weight) + " do not fit");
    return x;
  }
  const Window over = WindowOver(x, weight);
  const Image image(x);
  if (kind == Kind::kGlobalAveragePool) return {image.n, 1, 1, image.c};
  if (kind == Kind::kResize)
    return {image.n, resizing.Extent(0, image.h), resizing.Extent(1, image.w), image.c};
  const int64_t p = over.Extent(0, image.h), q = over.Extent(1, image.w);
  if (!IsConv(kind)) return {image.n, p, q, image.c};
  RequireChannels(x, weight, groups);
  return kind == Kind::kConv1d ? Shape{image.n, q, weight[0]} : Shape{image.n, p, q, weight[0]};
}

Shape Geometry::Channels(Shape input) const {
  if (end == 0) return input;
  if (input.back() != kUnknown && input.back() < end)
    Refuse("input 0 has shape " + ToString(input) + ", and the node reads its channels up to " +
           std::to_string(end));
  input.back() = end - begin;
  return input;
}

Shape Geometry::Planes(Shape y) const {
  if (padding < 0 || (y.back() != kUnknown && y.back() <= padding))
    Refuse("y has " + std::to_string(y.back()) + " channels, which does not fit a padding of " +
           std::to_string(padding));
  if (y.back() != kUnknown) y.back() -= padding;
  return ChangeLayout(Kind::kToNchw, y);
}

Shape Geometry::Whole(Shape own) const {
  if (own.back() != kUnknown) own.back() += before + after;
  return own;
}

Shape WeightShape(const Op& op, Shape first, const Shape& last) {
  if (op.kind != Kind::kConvChain) return last;
  RequireRank("weight", first, 4);
  RequireRank("the last weight", last, 4);
  first[0] = last[0];
  return first;
}

Shape Written(const Op& op, Shape y) {
  if (op.means) std::fill(y.begin() + 1, y.end() - 1, 1);
  return y;
}

Shape ChannelsLast(const Shape& planes) {
  RequireRank("x", planes, 4);
  return ChangeLayout(Kind::kToNhwc, planes);
}

}  // namespace onnxbolt
