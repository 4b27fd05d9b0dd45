// What fills a chain's shared memory: weights once, and the rows of A through the rings.
#pragma once
#include "chain/rows.h"
#include "chain/shape.h"
#include "dependent_launch.h"
#include "sm90/tma.h"

namespace onnxbolt {
namespace sm90 {

// All weights that stay. One thread; weights are constants and need not wait for the kernel before.
template <class K, int L = K::kIsResident ? 0 : 1>
__device__ void LoadWeights(const ChainParams& params, ChainMemory<K> memory) {
  if constexpr (L < K::kLayers) {
    constexpr int kBoxes = K::boxes(L), kBytes = K::box_bytes(L), kBox = K::box(L);
    Barrier& loaded = memory.barriers().weights[L];
    loaded.arrive_and_expect(kBoxes * kBytes);
    for (int i = 0; i < kBoxes; ++i)
      Load2D(params.weights[L], loaded, memory.template weights<L>() + i * kBytes, i * kBox, 0, Cache::kEvictLast);
    LoadWeights<K, L + 1>(params, memory);
  }
}

// The weights, then tiles of rows for all rings in turn, box by box. One thread where TMA reads the rows, else a warpgroup.
template <class K>
__device__ void ProduceChain(const ChainParams& params, ChainMemory<K> memory) {
  const bool leads = K::kRowsByTma || threadIdx.x % 128 == 0;
  if (leads) LoadWeights<K>(params, memory);
  WaitForPredecessors();
  typename K::Barriers& barriers = memory.barriers();
  constexpr int kBoxes = K::boxes(0), kBox = K::box(0);
  RingCursor<K::kStages> cursor;
  for (ChainTiles<K> tiles(0); tiles.first < params.tiles; tiles.first += tiles.step) {
    for (int box = 0; box < kBoxes; ++box, cursor.advance()) {
#pragma unroll
      for (int ring = 0; ring < K::kRings; ++ring) {
        const int tile = tiles.first + ring * gridDim.x;
        if (tile >= params.tiles) break;
        barriers.empty[ring][cursor.stage].wait(cursor.parity ^ 1);
        Barrier& full = barriers.full[ring][cursor.stage];
        char* stage = memory.stage(ring, cursor.stage);
        if (leads && K::kLoadBytes > 0) full.arrive_and_expect(K::kLoadBytes);
        if (leads && !K::kIsResident) Load2D(params.weights[0], full, stage + K::kRowsBytes, box * kBox, 0, Cache::kEvictLast);
        if constexpr (K::kRowsByTma) {
          Load2D(params.a, full, stage, box * kBox, tile * K::kStageRows, Cache::kEvictFirst);
        } else {
          RowCopies<K>(params, tile * K::kStageRows).start(stage, box);
          ArriveBehindCopies(full);
        }
      }
    }
  }
  if constexpr (!K::kRowsByTma) WaitForCopies();
}

}  // namespace sm90
}  // namespace onnxbolt
