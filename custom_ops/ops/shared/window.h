// The window that a convolution or pooling slides over height and width; a one-dimensional one has
// height 1.
#pragma once
#include "runtime/attributes.h"
#include "runtime/shapes.h"

namespace onnxbolt {

struct Window {
  // Throws ort::Error for attributes that are damaged.
  explicit Window(const Attributes& attributes);

  // With the extents of a filter or of an image: the spatial ones of `shape`, whose first and last
  // dimensions are others.
  Window Over(const char* what, const ort::Shape& shape) const;

  int64_t Extent(int axis, int64_t input) const;
  bool Keeps(int axis) const;  // the output's extent is the input's, whatever that is

  // Names of the output's spatial dimensions in place of x's.
  Symbols Names(Symbols x) const;

  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, begin[2] = {0, 0},
          end[2] = {0, 0};
  bool ceil_mode = false;
};

}  // namespace onnxbolt
