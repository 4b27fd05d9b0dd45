// Checks that every kernel of a GEMM makes before a launch.
#pragma once
#include "ops/gemm/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {

// A GEMM's extents, pitches and pointers against the accesses of its configuration.
template <class Row, class Element, class Output>
const char* CheckGemm(const GemmArguments& gemm) {
  if (const char* error = CheckExtents(gemm.m, gemm.n, gemm.k)) return error;
  constexpr int kA = Row::at(kAlignA), kB = Row::at(kAlignB), kC = Row::at(kAlignC);
  if (gemm.k % kA != 0 || gemm.lda % kA != 0 || !IsAligned(gemm.a, kA * sizeof(Element)))
    return "A, its pitch or k is not aligned to align_a elements";
  if (gemm.k % kB != 0 || gemm.ldb % kB != 0 || !IsAligned(gemm.b, kB * sizeof(Element)))
    return "B, its pitch or k is not aligned to align_b elements";
  if (gemm.n % kC != 0 || gemm.ldd % kC != 0 || !IsAligned(gemm.d, kC * sizeof(Output)))
    return "D, its pitch or n is not aligned to align_c elements";
  return nullptr;
}

}  // namespace onnxbolt
