// The arguments of a row-wise softmax, from the op to its kernels.
#pragma once
#include <cstdint>

namespace extending {

// y = softmax(scale x) of each row; a pitch is elements from one row to the next.
struct ScaledSoftmaxArguments {
  int64_t rows, columns;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  float scale;
};

}  // namespace extending
