// The producer warps of a halo convolution: one loads input tiles, the other filters, each as far
// ahead as its ring allows.
#pragma once
#include "sm90/halo/block.h"

namespace onnxbolt {
namespace halo {

template <class Plan>
__device__ void LoadInputs(const Params& params, const Memory<Plan>& memory) {
  Barriers& barriers = memory.barriers();
  sm90::RingCursor<Plan::kInputStages> at;
  const int bytes = params.tile.box_pixels() * Plan::kRowBytes;
  const Tiles<Plan> tiles{params};
  bool started = false;
  for (int index = tiles.first; index < params.tiles; index += tiles.step) {
    const Tile tile = tiles.at(index);
    const int row = tile.row * params.stride - params.pad_top,
              column = tile.column * params.stride - params.pad_left;
    const int channel = tile.group * params.groups.depth;
    ForEachStage(params, [&](int k_block, int phase_row, int phase_column) {
      barriers.input_empty[at.stage].wait(at.parity ^ 1);
      barriers.input_full[at.stage].arrive_and_expect(bytes);
      sm90::Load4D(params.x, barriers.input_full[at.stage], memory.input(at.stage),
                   channel + k_block * Plan::kBlockK, column + phase_column, row + phase_row,
                   tile.image, sm90::Cache::kNormal);
      // All blocks begin at the same time: first they load what the first products need, then what
      // comes later. With a stride the first products need more than the first load.
      if (!started && params.stride == 1) barriers.input_full[at.stage].wait(at.parity);
      started = true;
      at.advance();
    });
  }
}

// Loads one filter position of one k-block.
template <class Plan>
__device__ void LoadFilter(const Params& params, sm90::Barrier& full, char* to, int k_block,
                           int tap, int channel, int rank) {
  const int c = k_block * Plan::kBlockK;
  if constexpr (Plan::kCluster == 1) {
    sm90::Load3D(params.filter, full, to, c, tap, channel, sm90::Cache::kEvictLast);
  } else {
    constexpr uint16_t kAll = (1 << Plan::kCluster) - 1;
    const int share = rank * Plan::kFilterShare;
    sm90::Load3D(params.filter, full, to + share * Plan::kRowBytes, c, tap, channel + share,
                 sm90::Cache::kEvictLast, kAll);
  }
}

// Loads filters. All blocks read them, so they stay in L2. Each block of a cluster loads its share
// of the output channels for all of them. A block that keeps its filters has the same output
// channels in all its tiles.
template <class Plan>
__device__ void LoadFilters(const Params& params, const Memory<Plan>& memory) {
  Barriers& barriers = memory.barriers();
  sm90::RingCursor<Plan::kFilterStages> at;
  const Tiles<Plan> tiles{params};
  for (int index = tiles.first; index < params.tiles; index += tiles.step) {
    const int channel = tiles.at(index).channel;
    ForEachStage(params, [&](int k_block, int phase_row, int phase_column) {
      ForEachTap(params, phase_row, phase_column, [&](int r, int s) {
        if (!Plan::kKeepsFilter) barriers.filter_empty[at.stage].wait(at.parity ^ 1);
        barriers.filter_full[at.stage].arrive_and_expect(Plan::kFilterBytes);
        LoadFilter<Plan>(params, barriers.filter_full[at.stage], memory.filter(at.stage), k_block,
                         r * params.s + s, channel, tiles.rank);
        at.advance();
      });
    });
    if (Plan::kKeepsFilter) return;
  }
}

}  // namespace halo
}  // namespace onnxbolt
