// The arguments of an epilogue by itself, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// y = epilogue(x) on rows of channels; a pitch is elements from one row (pixel) to the next.
struct ElementwiseArguments {
  int64_t rows;
  int channels;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
