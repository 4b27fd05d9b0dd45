// Convolution of images in NHWC with mma.sync, for sm_75, sm_80 and later: CUTLASS 2.x's implicit
// GEMM, whose rows are output pixels and whose columns are output channels.
//
// A block gathers the pixels of one tile of rows for each filter position, multiplies them with
// the filter's tile, and ends with the epilogue on its accumulators (mma/implicit_gemm.h).
//
// Constraints: NHWC output; channels of a group are multiples of align_a, align_b and align_c; one
// image and one filter have fewer than 2^31 elements.
#pragma once
#include "mma/implicit_gemm.h"

namespace onnxbolt {

// See ConvArguments.
template <class Config, class Element, class Output, class Chain>
using Conv2x = ImplicitGemmConv<Config, Element, Output, Chain>;

}  // namespace onnxbolt
