// The window that a convolution or pooling slides over depth, height and width; one of fewer
// dimensions has extent 1 along the first ones.
#pragma once
#include "runtime/attributes.h"
#include "runtime/shapes.h"

namespace onnxbolt {

enum Axis { kDepth, kHeight, kWidth, kAxes };

struct Window {
  // Throws ort::Error for attributes that are damaged.
  explicit Window(const Attributes& attributes);

  // With the extents of a filter or of an image: the spatial ones of `shape`, whose first and last
  // dimensions are others.
  Window Over(const char* what, const ort::Shape& shape) const;

  int64_t Extent(int axis, int64_t input) const;
  bool Keeps(int axis) const;    // the output's extent is the input's, whatever that is
  bool IsPoint(int axis) const;  // an output reads the one element of the input at its own place
  bool Covers(int axis, int64_t input) const;  // the one output reads all elements of the input

  // Names of the output's spatial dimensions in place of x's.
  Symbols Names(Symbols x) const;

  int64_t kernel[kAxes] = {1, 1, 1}, stride[kAxes] = {1, 1, 1}, dilation[kAxes] = {1, 1, 1},
          begin[kAxes] = {}, end[kAxes] = {};
  bool ceil_mode = false;
};

}  // namespace onnxbolt
