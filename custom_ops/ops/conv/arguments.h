// The arguments of a convolution, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c]), cross-correlation. A pitch is elements
// from one pixel to the next.
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

  constexpr void* rows() const { return stored ? stored : y; }  // the NHWC output
  constexpr int64_t row_pitch() const { return stored ? k : y_pitch; }
};

}  // namespace onnxbolt
