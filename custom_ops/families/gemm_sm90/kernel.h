// GEMM of our own for sm_90a.
//
// Persistent and warp-specialized (sm90/persistent.h): a producer warpgroup feeds a ring of operand
// tiles by TMA, one to three consumer warpgroups multiply with wgmma and run the epilogue. Clusters
// share operands by multicast, k may be split, small m may be computed as the transposed product.
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "sm90/gemm.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). float is multiplied as TF32, rounded by TMA on its way
// into shared memory.
template <class Config, class ElementType, class OutputType, class ChainType>
struct GemmSm90
    : sm90::GemmFunctions<sm90::KernelShape<Config, ElementType, OutputType, ChainType>> {
  static_assert(Config::at(kAlignA) * sizeof(ElementType) == 16 &&
                    Config::at(kAlignB) * sizeof(ElementType) == 16 &&
                    Config::at(kAlignC) * sizeof(ElementType) == 16,
                "TMA moves rows of 16 bytes");
};

}  // namespace onnxbolt
