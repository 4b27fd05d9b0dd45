// The arguments of a GEMM, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). Pitches are elements from one row to the next; a channel
// offset is part of the pointer. `stored` takes what is in front of a Store, in dense rows, if the
// chain has one. `moments_of_d` takes the statistics of D's rows if the chain ends in Moments, and
// `moments_of_a` holds those of A's rows if it begins with a folded norm: for each 64 columns and
// each row their mean, and the sum of squared differences from it.
struct GemmArguments {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t lda, ldb, ldd;
  EpilogueArguments epilogue;
  void* stored = nullptr;
  const float* moments_of_a = nullptr;  // [k / 64, m, 2]
  float* moments_of_d = nullptr;        // [n / 64, m, 2]
};

}  // namespace onnxbolt
