// The arguments of a layout conversion, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// x [n, channels, pixels] to y [n, pixels, stored] with zeros in the channels that are stored
// beyond `channels`, or back without them.
struct LayoutArguments {
  int to_last;  // 1: to channels last, 0: to channels first
  int n, channels, stored, pixels;
  const void* x;
  void* y;
};

}  // namespace onnxbolt
