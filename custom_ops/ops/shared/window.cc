#include "ops/shared/window.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// Puts 1 to 3 numbers into the places of the last axes, so that a one-dimensional attribute is the
// width's.
void Assign(const char* what, const int64_t* values, size_t rank, int64_t (&by_axis)[kAxes]) {
  if (rank < 1 || rank > kAxes)
    Refuse(std::string(what) + " has " + std::to_string(rank) +
           " spatial dimensions, expected 1 to 3");
  for (size_t i = 0; i < rank; ++i) by_axis[kAxes - rank + i] = values[i];
}

void AssignIfPresent(const Attributes& attributes, const char* name, int64_t (&by_axis)[kAxes]) {
  const Shape values = attributes.Ints(name);
  if (!values.empty()) Assign(name, values.data(), values.size(), by_axis);
}

// A name for an extent that follows from a named one. It is the formula, so that equal extents, and
// only they, are equally named.
std::string ExtentName(const Window& window, int axis, const std::string& input) {
  if (input.empty() || window.Keeps(axis)) return input;
  const int64_t padding =
      window.begin[axis] + window.end[axis] - window.dilation[axis] * (window.kernel[axis] - 1) - 1;
  const std::string bound =
      window.ceil_mode ? ",begin<" + input + "+" + std::to_string(window.begin[axis]) : "";
  return std::string(window.ceil_mode ? "ceil" : "floor") + "((" + input +
         (padding < 0 ? "" : "+") + std::to_string(padding) + ")/" +
         std::to_string(window.stride[axis]) + ")+1" + bound;
}

}  // namespace

Window::Window(const Attributes& attributes) {
  AssignIfPresent(attributes, "kernel_shape", kernel);
  AssignIfPresent(attributes, "strides", stride);
  AssignIfPresent(attributes, "dilations", dilation);
  if (const Shape pads = attributes.Ints("pads"); !pads.empty()) {
    const size_t rank = pads.size() / 2;
    Assign("pads", pads.data(), rank, begin);
    Assign("pads", pads.data() + rank, rank, end);
  }
  for (int axis = 0; axis < kAxes; ++axis) {
    if (stride[axis] < 1 || dilation[axis] < 1)
      Refuse("strides and dilations have to be 1 or more");
  }
  ceil_mode = attributes.Int("ceil_mode", 0) != 0;
}

Window Window::Over(const char* what, const Shape& shape) const {
  Window over = *this;
  Assign(what, shape.data() + 1, shape.size() - 2, over.kernel);
  return over;
}

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

bool Window::IsPoint(int axis) const {
  return kernel[axis] == 1 && stride[axis] == 1 && begin[axis] == 0 && end[axis] == 0;
}

bool Window::Covers(int axis, int64_t input) const {
  return kernel[axis] == input && dilation[axis] == 1 && begin[axis] == 0 && end[axis] == 0;
}

Symbols Window::Names(Symbols x) const {
  for (size_t i = 1; i + 1 < x.size(); ++i)
    x[i] = ExtentName(*this, static_cast<int>(kAxes + i + 1 - x.size()), x[i]);
  return x;
}

}  // namespace onnxbolt
