// The arguments of a GEMM, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). Pitches are elements from one row to the next; a channel
// offset is part of the pointer.
struct GemmArguments {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t lda, ldb, ldd;
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
