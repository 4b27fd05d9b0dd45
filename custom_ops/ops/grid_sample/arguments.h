// The arguments of sampling images at given positions, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

constexpr int kMaxSampledLevels = 8;

// An image of [n, h, w, channels]: pixel (r, s) of the first batch is row first + r w + s of x.
struct SampledLevel {
  int h, w, first;
};

// y[n, query, head, :] = sum over points i of weights[n, query, head, i] times the pixel of x's
// head at grid[n, query, head, i] = (x, y), interpolated (ONNX, GridSample): the points of each
// level, one level after the other. A head has `size` channels. Without weights there is one point,
// whose pixel is y. `rows` are those of x in a batch. A pitch is elements from one row to the next.
struct GridSampleArguments {
  SampleMode mode;
  Outside outside;
  bool align_corners, grid_f32;                 // grid_f32: the grid is float32, else of x's type
  int n, queries, heads, size, levels, points;  // points of a level
  int64_t rows;
  SampledLevel level[kMaxSampledLevels];
  const void *x, *grid, *weights;
  void* y;
  int64_t x_pitch, y_pitch;
};

}  // namespace onnxbolt
