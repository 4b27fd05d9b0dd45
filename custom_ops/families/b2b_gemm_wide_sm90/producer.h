// The producer of wide back-to-back GEMMs: one thread loads the weights, box by box of all layers
// in turn; others load the rows.
#pragma once
#include "sm90/b2b/rows.h"
#include "families/b2b_gemm_wide_sm90/shape.h"
#include "runtime/dependent_launch.h"
#include "sm90/tma.h"

namespace onnxbolt {
namespace sm90 {

// Layer L and those behind it, of one tile.
template <class K, int L = 0>
__device__ void LoadLayers(const ChainParams& params, WideMemory<K> memory,
                           RingCursor<K::kStages>& cursor) {
  if constexpr (L < K::kLayers) {
    constexpr int kBytes = K::box_bytes(L), kBoxes = K::boxes(L);
    typename K::Barriers& barriers = memory.barriers();
    for (int pass = 0; pass < K::passes(L); ++pass) {
      for (int box = 0; box < kBoxes; ++box, cursor.advance()) {
        Barrier& full = barriers.full[cursor.stage];
        barriers.empty[cursor.stage].wait(cursor.parity ^ 1);
        full.arrive_and_expect(K::kShares * kBytes);
#pragma unroll
        for (int share = 0; share < K::kShares; ++share)
          Load2D(params.weights[L], full, memory.weights(cursor.stage) + share * kBytes,
                 box * K::box(L), (pass * K::kShares + share) * K::block(L), Cache::kEvictLast);
      }
    }
    LoadLayers<K, L + 1>(params, memory, cursor);
  }
}

// One thread. Weights are constants and need not wait for the kernel before.
template <class K>
__device__ void ProduceWeights(const ChainParams& params, WideMemory<K> memory) {
  RingCursor<K::kStages> cursor;
  for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x)
    LoadLayers<K>(params, memory, cursor);
}

// One thread where TMA reads the rows, else kRowThreads of them, from `thread` 0 on.
template <class K>
__device__ void ProduceRows(const ChainParams& params, WideMemory<K> memory, int thread) {
  WaitForPredecessors();
  typename K::Barriers& barriers = memory.barriers();
  RingCursor<K::kRowStages> cursor;
  constexpr int kBoxes = K::boxes(0), kPasses = K::passes(0);
  for (int tile = blockIdx.x; tile < params.tiles; tile += gridDim.x) {
    for (int i = 0; i < kPasses * kBoxes; ++i, cursor.advance()) {
      const int box = i % kBoxes, row = tile * K::kStageRows;
      barriers.rows_empty[cursor.stage].wait(cursor.parity ^ 1);
      Barrier& full = barriers.rows_full[cursor.stage];
      if constexpr (K::kRowsByTma) {
        full.arrive_and_expect(K::kStageRows * K::kRowPitch);
        Load2D(params.a, full, memory.rows(cursor.stage), box * K::box(0), row, Cache::kEvictFirst);
      } else {
        RowCopies<K>(params, row, thread).start(memory.rows(cursor.stage), box);
        ArriveBehindCopies(full);
      }
    }
  }
  if constexpr (!K::kRowsByTma) WaitForCopies();
}

}  // namespace sm90
}  // namespace onnxbolt
