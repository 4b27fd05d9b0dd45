// The arguments of a convolution and 1x1 convolutions behind it, from the op to its kernels.
#pragma once
#include "ops/conv/arguments.h"
#include "ops/gemm_chain/arguments.h"

namespace onnxbolt {

// A convolution and 1x1 convolutions behind it, in one kernel: of `conv` x, the filter, all
// extents, k and the epilogue are the first layer's. `chain` has all layers, the first one as a
// product of n p q rows and k = r s c. Both have the output: y, which is d, with its pitch.
struct ConvChainArguments {
  ConvArguments conv;
  ChainArguments chain;
};

}  // namespace onnxbolt
