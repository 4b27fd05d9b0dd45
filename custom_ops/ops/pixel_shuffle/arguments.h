// The arguments of a rearrangement of pixels and channels, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// Depth to space: y[n, h block, w block, c] from x[n, h, w, c block^2] (ONNX, DepthToSpace), or
// space to depth, the way back, then an epilogue. The channels of a block's pixel lie behind one
// another, or with `by_channel` the pixels of a channel. A pitch is elements from one pixel to the
// next.
struct PixelShuffleArguments {
  bool to_space, by_channel;
  int n, h, w, c, block;  // h and w of the smaller image, c of the larger one
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
