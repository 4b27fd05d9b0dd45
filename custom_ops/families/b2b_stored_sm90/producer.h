// The producer of two products whose first result is stored: three threads, one for each kind of
// buffers. All warpgroups have the same number of rounds, with zeros as rows beyond the last one.
#pragma once
#include "families/b2b_stored_sm90/shape.h"
#include "runtime/dependent_launch.h"
#include "sm90/tma.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
__device__ void LoadRows(const StoredParams& params, StoredMemory<K> memory) {
  typename K::Barriers& barriers = memory.barriers();
  RingCursor<K::kStages> at;
  WaitForPredecessors();
  for (int round = 0; round < params.rounds; ++round, at.advance()) {
    for (int group = 0; group < K::kGroups; ++group) {
      Barrier& full = barriers.rows_full[group][at.stage];
      barriers.rows_empty[group][at.stage].wait(at.parity ^ 1);
      full.arrive_and_expect(K::kRowsBytes);
      char* to = memory.rows(group, at.stage);
      for (int box = 0; box < K::kBoxes; ++box)
        Load2D(params.rows, full, to + box * K::kBoxBytes, box * K::kBox, FirstRow<K>(round, group),
               Cache::kNormal);
    }
  }
}

// Weights are constants, and need not wait for the kernel before. Resident ones come once.
template <class K>
__device__ void LoadBlocks(const StoredParams& params, StoredMemory<K> memory) {
  typename K::Barriers& barriers = memory.barriers();
  RingCursor<K::kWeightStages> at;
  const int rounds = K::kIsResident ? 1 : params.rounds;
  for (int round = 0; round < rounds; ++round) {
    for (int block = 0; block < K::kBlocks; ++block, at.advance()) {
      Barrier& full = barriers.weights_full[at.stage];
      barriers.weights_empty[at.stage].wait(at.parity ^ 1);
      full.arrive_and_expect(K::kWeightBytes);
      const int column = block * K::kBlockColumns;
      for (int box = 0; box < K::kBoxes; ++box)
        Load2D(params.weights[0], full, memory.weights(at.stage) + box * K::kBoxBytes,
               box * K::kBox, column, Cache::kEvictLast);
      Load2D(params.weights[1], full, memory.next_weights(at.stage), column, 0, Cache::kEvictLast);
    }
  }
}

// The residual of each unit, into the buffer from which the unit will be stored.
template <class K>
__device__ void LoadResiduals(const StoredParams& params, StoredMemory<K> memory) {
  using Store = typename K::Store;
  RingCursor<Store::kBuffers> at;
  WaitForPredecessors();
  for (int round = 0; round < params.rounds; ++round) {
    for (int block = 0; block < K::kBlocks; ++block, at.advance()) {
      for (int group = 0; group < K::kGroups; ++group) {
        const EpilogueMemory<Store> to = memory.store(group);
        to.residual_free[at.stage].wait(at.parity ^ 1);
        to.residual_loaded[at.stage].arrive_and_expect(Store::kUnitBytes);
        Load2D(params.residual, to.residual_loaded[at.stage],
               to.staging + at.stage * Store::kUnitBytes, block * K::kBlockColumns,
               FirstRow<K>(round, group), Cache::kNormal);
      }
    }
  }
}

}  // namespace sm90
}  // namespace onnxbolt
