// Loads of back-to-back GEMMs into shared memory: weights once, and the rows of A through the
// rings.
#pragma once
#include "sm90/b2b/rows.h"
#include "sm90/b2b/shape.h"
#include "runtime/dependent_launch.h"
#include "sm90/tma.h"

namespace onnxbolt {
namespace sm90 {

// Loads all weights that stay. Called by one thread; weights are constants and need not wait for
// the kernel before.
template <class K, int L = K::kIsResident ? 0 : 1>
__device__ void LoadWeights(const ChainParams& params, ChainMemory<K> memory) {
  if constexpr (L < K::kLayers) {
    constexpr int kBoxes = K::boxes(L), kBytes = K::box_bytes(L), kBox = K::box(L);
    Barrier& loaded = memory.barriers().weights[L];
    loaded.arrive_and_expect(kBoxes * kBytes);
    for (int i = 0; i < kBoxes; ++i)
      Load2D(params.weights[L], loaded, memory.template weights<L>() + i * kBytes, i * kBox, 0,
             Cache::kEvictLast);
    LoadWeights<K, L + 1>(params, memory);
  }
}

// Loads the weights, then tiles of rows for all rings in turn, box by box. Called by one thread if
// TMA reads the rows, else by a warpgroup.
template <class K>
__device__ void ProduceChain(const ChainParams& params, ChainMemory<K> memory) {
  const bool leads = K::kRowsByTma || threadIdx.x % 128 == 0;
  if (leads) LoadWeights<K>(params, memory);
  WaitForPredecessors();
  typename K::Barriers& barriers = memory.barriers();
  constexpr int kBoxes = K::boxes(0), kBox = K::box(0);
  // Rows are read once. Still, evicting them from L2 early costs more if as much is written (17.3
  // to 15.2 us at 128320 rows: 96 to 32 to 96).
  constexpr Cache kRows =
      4 * K::columns(K::kLast) <= K::kDepth ? Cache::kEvictFirst : Cache::kNormal;
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
        if (leads && !K::kIsResident)
          Load2D(params.weights[0], full, stage + K::kRowsBytes, box * kBox, 0, Cache::kEvictLast);
        if constexpr (K::kRowsByTma) {
          Load2D(params.a, full, stage, box * kBox, tile * K::kStageRows, kRows);
        } else {
          RowCopies<K>(params, tile * K::kStageRows, threadIdx.x % 128).start(stage, box);
          ArriveBehindCopies(full);
        }
      }
    }
  }
  if constexpr (!K::kRowsByTma) WaitForCopies();
}

// Loads the residual of each unit of all groups' tiles into the buffer from which the unit will be
// stored. Called by one thread.
template <class K>
__device__ void ProduceResiduals(const ChainParams& params, ChainMemory<K> memory) {
  using Finish = typename K::Finish;
  WaitForPredecessors();
  RingCursor<Finish::kBuffers> cursors[K::kGroups];
  for (ChainTiles<K> tiles(0); tiles.first < params.tiles; tiles.first += tiles.step) {
    for (int unit = 0; unit < Finish::kUnits; ++unit) {
#pragma unroll
      for (int group = 0; group < K::kGroups; ++group) {
        const int tile = tiles.first + (K::kIsResident ? group * gridDim.x : 0);
        if (tile >= params.tiles) break;
        const EpilogueMemory<Finish> epilogue = memory.epilogue(group);
        const int stage = cursors[group].stage,
                  row = tile * K::kStageRows + (K::kIsResident ? 0 : group * 64);
        epilogue.residual_free[stage].wait(cursors[group].parity ^ 1);
        epilogue.residual_loaded[stage].arrive_and_expect(Finish::kUnitBytes);
        Load2D(params.residual, epilogue.residual_loaded[stage],
               epilogue.staging + stage * Finish::kUnitBytes, unit * Finish::kUnitColumns, row,
               Cache::kNormal);
        cursors[group].advance();
      }
    }
  }
}

}  // namespace sm90
}  // namespace onnxbolt
