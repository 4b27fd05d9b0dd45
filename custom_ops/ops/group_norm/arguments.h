// The arguments of a normalization of groups of channels, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// Images x[n, pixels, channels], whose channels are `groups` groups of neighbours. With mean and
// variance of s = x + before over each image's pixels and the channels of a group,
//   y = epilogue((gamma (s - mean) / sqrt(variance + epsilon) + beta) (1 + scale) + shift).
// gamma and beta are [channels]; before, scale and shift are [n, channels] in the element type, or
// null where they count as zero. A pitch is elements from one pixel to the next.
struct GroupNormArguments {
  int n, pixels, channels, groups;
  float epsilon;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  const float *gamma, *beta;
  const void *before, *scale, *shift;
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
