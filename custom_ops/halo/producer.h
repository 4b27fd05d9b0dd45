// The producer warps of a halo convolution: one loads input tiles, one filters, each as far ahead as its ring allows.
#pragma once
#include "halo/block.h"

namespace onnxbolt {
namespace halo {

template <class Plan>
__device__ void LoadInputs(const Params& params, const Memory<Plan>& memory) {
  Barriers& barriers = memory.barriers();
  sm90::RingCursor<Plan::kInputStages> at;
  const int bytes = params.tile.row_pitch * params.tile.image_rows * params.tile.images * Plan::kRowBytes;
  for (int index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const Tile tile = TileAt(params, index, Plan::kTileChannels);
    const int row = tile.row * params.stride - params.pad_top, column = tile.column * params.stride - params.pad_left;
    ForEachStage(params, [&](int k_block, int phase_row, int phase_column) {
      barriers.input_empty[at.stage].wait(at.parity ^ 1);
      barriers.input_full[at.stage].arrive_and_expect(bytes);
      sm90::Load4D(params.x, barriers.input_full[at.stage], memory.input(at.stage), k_block * Plan::kBlockK, column + phase_column,
                   row + phase_row, tile.image, sm90::Cache::kNormal);
      at.advance();
    });
  }
}

// Filters are read by all blocks: they stay in L2. A block that keeps them has the same output channels in all its tiles.
template <class Plan>
__device__ void LoadFilters(const Params& params, const Memory<Plan>& memory) {
  Barriers& barriers = memory.barriers();
  sm90::RingCursor<Plan::kFilterStages> at;
  for (int index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const int channel = TileAt(params, index, Plan::kTileChannels).channel;
    ForEachStage(params, [&](int k_block, int phase_row, int phase_column) {
      ForEachTap(params, phase_row, phase_column, [&](int r, int s) {
        if (!Plan::kKeepsFilter) barriers.filter_empty[at.stage].wait(at.parity ^ 1);
        barriers.filter_full[at.stage].arrive_and_expect(Plan::kFilterBytes);
        sm90::Load3D(params.filter, barriers.filter_full[at.stage], memory.filter(at.stage), k_block * Plan::kBlockK, r * params.s + s,
                     channel, sm90::Cache::kEvictLast);
        at.advance();
      });
    });
    if (Plan::kKeepsFilter) return;
  }
}

}  // namespace halo
}  // namespace onnxbolt
