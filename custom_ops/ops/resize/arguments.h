// The arguments of a resizing, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// [n, p, q, c] from the pixels of x[n, h, w, c] that lie where `coordinates` says (ONNX, Resize),
// then an epilogue. A scale is output to input.
struct ResizeArguments {
  ResizeMode mode;
  Coordinates coordinates;
  Rounding rounding;
  int n, h, w, c, p, q;
  float scale_h, scale_w;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  // Cubic: Keys' parameter, and whether pixels outside of the image have no weight (else they equal
  // those at its border).
  float cubic_coeff_a = -0.75f;
  bool exclude_outside = false;
  // Height and width of y: p and q, where these are not 1. One row or column of pixels serves all
  // of y, as ONNX broadcasts, here and in the epilogue's tensors, whose heights and widths follow.
  int y_h = 0, y_w = 0;
  int tensor_h[kMaxTensors] = {}, tensor_w[kMaxTensors] = {};
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
