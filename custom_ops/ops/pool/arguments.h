// The arguments of a pooling, from the op to its kernels.
#pragma once
#include "ops/shared/depth.h"
#include "runtime/kernel.h"

namespace onnxbolt {

enum class PoolKind : int { kMax = 0, kAverage = 1 };

// y[n, p, q, c] = max or mean over windows of x[n, h, w, c]; a global pooling is a window of the
// whole image. With depth, x is [n, depth.x, h, w, c], and y is [n, depth.y, p, q, c].
struct PoolArguments {
  PoolKind kind;
  int n, h, w, c, p, q;
  int window_h, window_w, pad_top, pad_left, pad_bottom, pad_right, stride_h, stride_w, dilation_h,
      dilation_w;
  int count_include_pad;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  DepthAxis depth{};  // exists() for windows of several slices alone
};

}  // namespace onnxbolt
