// GEMM on the CUDA cores, for every architecture and element type.
//
// A block copies a tile of A and one of B to shared memory, as floats, for one step along k. Each
// of its threads adds up a rectangle of the output from them, and applies the epilogue to it row by
// row.
//
// Constraints: none; rows, columns and k may end anywhere within a tile.
#pragma once
#include "cutlass/array.h"
#include "epilogue/chain.h"
#include "ops/gemm/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {

template <class Instance>
__global__ void __launch_bounds__(Instance::kThreads)
    gemm_fma_kernel(const __grid_constant__ GemmArguments gemm) {
  __shared__ float a[Instance::kK][Instance::kM], b[Instance::kK][Instance::kN];
  const int64_t first_row = int64_t(blockIdx.x) * Instance::kM;
  const int64_t first_column = int64_t(blockIdx.y) * Instance::kN;
  const int row = threadIdx.x / Instance::kAcross * Instance::kRows;
  const int column = threadIdx.x % Instance::kAcross * Instance::kColumns;
  typename Instance::Sums sums[Instance::kRows];
  for (auto& each : sums) each.clear();
  for (int64_t k = 0; k < gemm.k; k += Instance::kK) {
    Instance::load(a, gemm.a, gemm.lda, first_row, gemm.m, k, gemm.k);
    Instance::load(b, gemm.b, gemm.ldb, first_column, gemm.n, k, gemm.k);
    __syncthreads();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Instance::kK; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int m = 0; m < Instance::kRows; ++m) {
        CUTLASS_PRAGMA_UNROLL
        for (int n = 0; n < Instance::kColumns; ++n) {
          sums[m][n] += a[i][row + m] * b[i][column + n];
        }
      }
    }
    __syncthreads();
  }
  CUTLASS_PRAGMA_UNROLL
  for (int m = 0; m < Instance::kRows; ++m) {
    Instance::store(gemm, sums[m], first_row + row + m, first_column + column);
  }
}

// D[m, n] = epilogue(A[m, k] B[n, k]^T), in fp32.
template <class Config, class ElementType, class OutputType, class Chain>
struct GemmFma {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kM = Row::at(kTileM), kN = Row::at(kTileN),
                       kK = Row::at(kTileK);                                 // a tile
  static constexpr int kRows = Row::at(kWarpM), kColumns = Row::at(kWarpN);  // one thread's part
  static constexpr int kAcross = kN / kColumns;  // threads along a tile's columns
  static constexpr int kThreads = kM / kRows * kAcross;
  static constexpr int kSharedMemory = 0;  // beside the kernel's own arrays
  using Sums = cutlass::Array<float, kColumns>;

  static const char* prepare() { return ReserveSharedMemory(gemm_fma_kernel<GemmFma>, 0); }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckExtents(gemm.m, gemm.n, gemm.k)) return error;
    return CheckOperands<Chain, Element>(gemm.epilogue, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    const dim3 tiles((gemm.m + kM - 1) / kM, (gemm.n + kN - 1) / kN);
    gemm_fma_kernel<GemmFma><<<tiles, kThreads, 0, launch.stream>>>(gemm);
    return ErrorText(cudaGetLastError());
  }

  // Fills a tile with rows of A or B from `first` on, from position k on; zeros beyond their ends.
  template <int Width>
  __device__ static void load(float (&tile)[kK][Width], const void* values, int64_t pitch,
                              int64_t first, int64_t rows, int64_t k, int64_t depth) {
    for (int i = threadIdx.x; i < kK * Width; i += kThreads) {
      const int64_t row = first + i / kK, at = k + i % kK;
      const bool inside = row < rows && at < depth;
      tile[i % kK][i / kK] =
          inside ? float(static_cast<const Element*>(values)[row * pitch + at]) : 0.f;
    }
  }

  // The epilogue of neighbouring columns of one row.
  __device__ static void store(const GemmArguments& gemm, const Sums& sums, int64_t row,
                               int64_t column) {
    if (row >= gemm.m) return;
    typename Chain::template Operands<kColumns> operands;
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      if (column + n >= gemm.n) break;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < Chain::kVectors; ++v)
        operands.vectors[v][n] = gemm.epilogue.vectors[v][column + n];
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < Chain::kTensors; ++t) {
        const auto* tensor = static_cast<const Element*>(gemm.epilogue.tensors[t]);
        operands.tensors[t][n] = float(tensor[row * gemm.epilogue.tensor_pitch[t] + column + n]);
      }
    }
    const auto results = Chain::template finish<Output>(sums, operands, gemm.epilogue.params);
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      if (column + n < gemm.n)
        static_cast<Output*>(gemm.d)[row * gemm.ldd + column + n] = results[n];
    }
  }
};

}  // namespace onnxbolt
