// The arguments of a convolution, from the op to its kernels.
#pragma once
#include "ops/shared/depth.h"
#include "runtime/kernel.h"

namespace onnxbolt {

// The place of a transposed convolution's pixels: output (p, q) of the convolution has those of all
// phases (f, g) as its channels, group by group, phase by phase; they are pixels
// (h p + f - top, w q + g - left) of y, those among them that y has. Of a volume, whose slices are
// the images, phases (e, f, g) are pixels of slice d n + e of y.
struct PhasedPixels {
  int h = 1, w = 1;              // phases along each axis
  int top = 0, left = 0;         // phases in front of the first pixel
  int height = 0, width = 0;     // extents of y
  int zeros_h = 0, zeros_w = 0;  // the last phases of a turn, which meet zeros at the first tap
  int d = 1;                     // phases along the depth: slices of y for one of x

  constexpr int count() const { return d * h * w; }
  constexpr bool apart() const { return count() > 1 || height > 0; }
  // True if all phases of a row of `q` outputs are y's row as it lies.
  constexpr bool lie_in_rows(int q) const {
    return d == 1 && h == 1 && left == 0 && w * q == width;
  }
};

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c]), cross-correlation. A pitch is elements
// from one pixel to the next. With depth, x is [n, depth.x, h, w, c], w is
// [k, depth.filter, r, s, c], and y is [n, depth.y, p, q, k].
struct ConvArguments {
  int n, h, w, c, k, r, s, p, q;
  int pad_top, pad_left, pad_bottom, pad_right, stride_h, stride_w, dilation_h, dilation_w, groups;
  const void *x, *filter;
  void* y;
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
  int x_nchw = 0;  // if x is [n, c, h, w], its ONNX element type (a stem's x may be fp32); else 0
  int y_nchw = 0;  // 1: y is to be [n, k, p, q], with any k; then it has no pitch
  void* stored = nullptr;  // if y is to be written in both layouts: the NHWC one, without gaps, in
                           // the element type of x
  int padding = 0;         // channels at the end that the NCHW layout lacks
  PhasedPixels pixels{};   // apart(): y is [n d, height, width, k / phases], and has no rows of k
  DepthAxis depth{};       // exists() for volumes alone

  constexpr void* rows() const { return stored ? stored : y; }  // the NHWC output
  constexpr int64_t row_pitch() const { return stored ? k : y_pitch; }
};

}  // namespace onnxbolt
