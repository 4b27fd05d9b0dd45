// Sums over the threads that share a row: some lanes of a warp, or all warps of a block.
#pragma once
#include "cutlass/cutlass.h"

namespace onnxbolt {
namespace norm {

constexpr int kWarp = 32;

// `Lanes` threads have a row, a power of two; each thread adds up for `Batch` rows at once. All
// threads of a block call it together.
template <int Lanes, int Batch>
class RowSums {
 public:
  // Replaces each thread's values by the sums over its row's threads: the same bits in all of them.
  __device__ void add_up(float (&values)[Batch]) {
    butterfly<(Lanes < kWarp ? Lanes : kWarp)>(values);
    if constexpr (kWarps > 1) exchange(values);
  }

 private:
  static constexpr int kWarps = Lanes / kWarp;

  template <int Width>
  __device__ static void butterfly(float (&values)[Batch]) {
    CUTLASS_PRAGMA_UNROLL
    for (int distance = Width / 2; distance > 0; distance /= 2) {
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < Batch; ++b) values[b] += __shfl_xor_sync(0xffffffff, values[b], distance);
    }
  }

  // The warps' sums take turns with two buffers, so that one barrier orders a sum's writes behind
  // the reads of the sum before the last.
  __device__ void exchange(float (&values)[Batch]) {
    __shared__ float parts[2][Batch][kWarps];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane == 0) {
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < Batch; ++b) parts[turn_][b][warp] = values[b];
    }
    __syncthreads();
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < Batch; ++b) values[b] = parts[turn_][b][lane % kWarps];
    butterfly<kWarps>(values);
    turn_ ^= 1;
  }

  int turn_ = 0;
};

}  // namespace norm
}  // namespace onnxbolt
