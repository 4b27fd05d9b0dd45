// The arguments of a GEMM, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). Pitches are elements from one row to the next; a channel
// offset is part of the pointer. Where each batch has matrices of its own, D's batches follow one
// another row by row, and strides are elements from one batch of A or B to the next, 0 where all
// share one.
struct GemmArguments {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t lda, ldb, ldd;
  EpilogueArguments epilogue;
  int64_t batches = 1, a_stride = 0, b_stride = 0;
};

}  // namespace onnxbolt
