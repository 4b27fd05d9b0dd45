// The arguments of products of 8-bit codes, from the ops to their kernels.
#pragma once
#include "ops/conv/arguments.h"
#include "ops/gemm/arguments.h"

namespace onnxbolt {

// Corrections of the sums for the zero point of x: -zero times the sum of the weights by which x is
// multiplied. Sums differ by the taps that meet the image, so that there is a row for each class of
// output pixels; one in all without padding.
struct OffsetArguments {
  const int32_t* values = nullptr;  // [classes, n]; null if the zero point is 0
  int classes = 1;
  int zero = 0;  // the zero point, for kernels that subtract it from x
};

// `values`: where the result is written in front of the epilogue's last step, in rows without gaps;
// null if it is not.
struct QuantizedGemmArguments : GemmArguments {
  OffsetArguments offsets;
  void* values = nullptr;
};

struct QuantizedConvArguments : ConvArguments {
  OffsetArguments offsets;
  void* values = nullptr;
};

}  // namespace onnxbolt
