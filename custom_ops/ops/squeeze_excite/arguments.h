// The arguments of a squeeze-and-excitation, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// y[n, p, c] = x[n, p, c] gate(excite[c, s] squeeze(squeeze[s, c] mean over p of x[n, p, c] + b1) +
// b2), with an activation behind each product, then an epilogue. A pitch is elements from one pixel
// to the next.
struct SqueezeExciteArguments {
  int n, pixels, channels, squeezed;
  const void *x, *squeeze, *excite;  // weights [squeezed, channels] and [channels, squeezed]
  const float *squeeze_bias, *excite_bias;
  void* y;
  int64_t x_pitch, y_pitch;
  float step_params[kMaxParams];  // parameters of both activations, then of the epilogue's steps
  EpilogueArguments epilogue;     // its tensors
};

}  // namespace onnxbolt
