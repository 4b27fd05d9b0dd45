// GEMM of 8-bit codes for sm_90a: the persistent kernel of sm90/persistent.h with the operands,
// sums and epilogue of codes (sm90/codes.h).
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "sm90/gemm.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T + offsets[n]).
template <class Config, class ElementType, class OutputType, class ChainType>
struct QuantizedGemmSm90
    : sm90::GemmFunctions<sm90::CodesShape<Config, ElementType, OutputType, ChainType>> {
  static_assert(!QuantizedGemmSm90::kBorder, "rows of a matrix have no border");
};

}  // namespace onnxbolt
