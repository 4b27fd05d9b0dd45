// The main loop of a halo convolution's consumer warpgroups: 64 output channels x the positions of
// a tile, one filter position after the other from the same input stage.
#pragma once
#include "sm90/halo/block.h"

namespace onnxbolt {
namespace halo {

// One consumer warpgroup's places in the rings. The products of a filter position are one group of
// wgmma; its stages are released once the next group has been issued, so that the tensor cores
// never wait for an issue.
template <class Plan>
class MainLoop {
 public:
  using Accumulators = sm90::Accumulators<Plan::kPositions>;

  __device__ MainLoop(const Params& params, const Memory<Plan>& memory, int warpgroup)
      : params_(params), memory_(memory), barriers_(memory.barriers()), warpgroup_(warpgroup) {
    if (Plan::kInTurns) skip_tiles(warpgroup);
  }

  // Issues the products of one tile; `finish` completes them.
  __device__ void multiply(Accumulators& d) {
    int accumulate = 0;
    ForEachStage(params_, [&](int, int phase_row, int phase_column) {
      barriers_.input_full[input_.stage].wait(input_.parity);
      const uint64_t pixels = descriptor(memory_.input(input_.stage), params_.tile.group_pitch);
      ForEachTap(params_, phase_row, phase_column, [&](int r, int s) {
        const int shift =
            (r >> params_.stride / 2) * params_.tile.row_pitch + (s >> params_.stride / 2);
        multiply_tap(d, pixels + shift * (Plan::kRowBytes / 16), accumulate);
        accumulate = 1;
      });
      last_.input = &barriers_.input_empty[input_.stage];
      input_.advance();
    });
  }

  __device__ void finish(Accumulators& d) {
    sm90::WaitForProducts<0>();
    sm90::PinAccumulators(d);
    release_last({});
    if (Plan::kKeepsFilter) filter_ = {};
    if (Plan::kInTurns) skip_tiles(Plan::kWarpgroups - 1);
  }

 private:
  static constexpr int kStep = sm90::kInstructionK<typename Plan::Element>,
                       kSteps = Plan::kBlockK / kStep;

  // The stages that a group of products was the last to read.
  struct Stages {
    sm90::Barrier *input = nullptr, *filter = nullptr;
  };

  __device__ static uint64_t descriptor(const char* rows, int group_pitch) {
    return sm90::OperandDescriptor(sm90::SharedAddress(rows) >> 4, Plan::kRowBytes, group_pitch);
  }

  __device__ void multiply_tap(Accumulators& d, uint64_t pixels, int accumulate) {
    barriers_.filter_full[filter_.stage].wait(Plan::kKeepsFilter ? 0 : filter_.parity);
    const char* rows = memory_.filter(filter_.stage) +
                       (Plan::kInTurns ? 0 : warpgroup_ * kChannels * Plan::kRowBytes);
    const uint64_t filters = descriptor(rows, kGroup);
    sm90::BeginProducts();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sm90::Wgmma<Plan::kPositions>::template multiply<typename Plan::Element>(
          d, filters + 2 * step, pixels + 2 * step, step > 0 ? 1 : accumulate);
    }
    sm90::CommitProducts();
    sm90::WaitForProducts<1>();
    release_last({nullptr, &barriers_.filter_empty[filter_.stage]});
    filter_.advance();
  }

  // Releases stages: the last group is complete, and the next one has been issued.
  __device__ void release_last(const Stages& next) {
    if (threadIdx.x % kWarpgroupThreads == 0) {
      if (!Plan::kKeepsFilter && last_.filter) release_filter(*last_.filter);
      if (last_.input) last_.input->arrive();
    }
    last_ = next;
  }

  // Gives a filter stage back to all blocks of the cluster: each of them writes to it in all
  // blocks.
  __device__ void release_filter(sm90::Barrier& empty) {
    if constexpr (Plan::kCluster == 1) {
      empty.arrive();
    } else {
      for (int rank = 0; rank < Plan::kCluster; ++rank) empty.arrive_at(rank);
    }
  }

  // Skips the stages of other warpgroups' tiles.
  __device__ void skip_tiles(int count) {
    const int phases = min(params_.stride, params_.r) * min(params_.stride, params_.s);
    input_.advance(count * params_.k_blocks * phases);
    if (!Plan::kKeepsFilter) filter_.advance(count * params_.k_blocks * params_.r * params_.s);
  }

  const Params& params_;
  const Memory<Plan>& memory_;
  Barriers& barriers_;
  const int warpgroup_;
  sm90::RingCursor<Plan::kInputStages> input_;
  sm90::RingCursor<Plan::kFilterStages> filter_;
  Stages last_;
};

}  // namespace halo
}  // namespace onnxbolt
