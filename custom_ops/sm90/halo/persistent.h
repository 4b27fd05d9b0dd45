// The kernel of a convolution from spatial tiles with their border (halo).
//
// How it works:
//
// 1. A tile's input, border included, is one TMA box for each k-block of channels; each filter
//    position is a view of it (sm90/halo/geometry.h), so that a pixel is loaded once.
// 2. One producer warp fills the ring of inputs, another the ring of filter positions
//    (sm90/halo/producer.h); blocks of a cluster share loads of filters.
// 3. Consumer warpgroups multiply 64 output channels (rows) by a tile's positions (columns) with
//    wgmma (sm90/halo/consumer.h), then run the epilogue (sm90/halo/epilogue.h).
//
// Cooperative warpgroups have different output channels of one tile. Pingpong warpgroups have tiles
// of their own and take turns with the main loop, so that the epilogue of one runs under the
// products of another.
//
// Constraints: see sm90/halo/block.h and sm90/halo/launch.h; elements of 2 bytes, dilation 1, equal
// strides of 1 or 2, multiples of 8 channels.
#pragma once
#include "runtime/dependent_launch.h"
#include "sm90/halo/consumer.h"
#include "sm90/halo/epilogue.h"
#include "sm90/halo/producer.h"

namespace onnxbolt {
namespace halo {

// Called by one thread: initializing by several would be serialized, with a fence for each.
template <class Plan>
__device__ void InitializeBarriers(Barriers& barriers) {
  constexpr int kReaders = Plan::kInTurns ? 1 : Plan::kWarpgroups;
  for (int i = 0; i < Plan::kInputStages; ++i) {
    barriers.input_full[i].init(1);
    barriers.input_empty[i].init(kReaders);
  }
  for (int i = 0; i < Plan::kFilterStages; ++i) {
    barriers.filter_full[i].init(1);
    barriers.filter_empty[i].init(kReaders * Plan::kCluster);
  }
  for (int i = 0; i < Plan::kWarpgroups; ++i) barriers.turn[i].init(1);
  barriers.weights.init(1);
  sm90::FenceBarrierInit();
}

// Called by each consumer `thread`: writes the zeros behind the boxes, which no copy overwrites.
template <class Plan>
__device__ void ClearBorders(const Params& params, const Memory<Plan>& memory, int thread) {
  const Geometry& tile = params.tile;
  const int begin = tile.box_pixels() * Plan::kRowBytes, bytes = tile.zero_pixels * Plan::kRowBytes;
#pragma unroll 1
  for (int stage = 0; stage < Plan::kInputStages; ++stage) {
    char* zeros = memory.input(stage) + begin;
#pragma unroll 1
    for (int i = thread * 16; i < bytes; i += Plan::kConsumerThreads * 16)
      *reinterpret_cast<uint4*>(zeros + i) = uint4{};
  }
  sm90::FenceAsyncProxy();
}

// Pingpong: the main loops of warpgroups follow one another. A wait distinguishes a phase from the
// one before it alone, so a warpgroup must not look at its stages while another one is still at an
// earlier phase of theirs.
template <class Plan>
struct Turns {
  Barriers& barriers;
  const int warpgroup;
  uint32_t parity;

  __device__ Turns(Barriers& barriers, int warpgroup)
      : barriers(barriers), warpgroup(warpgroup), parity(warpgroup == 0) {}

  __device__ void take() {
    if (Plan::kInTurns) barriers.turn[warpgroup].wait(parity);
    parity ^= 1;
  }

  __device__ void pass() {
    if (Plan::kInTurns && threadIdx.x % kWarpgroupThreads == 0)
      barriers.turn[(warpgroup + 1) % Plan::kWarpgroups].arrive();
  }
};

// The consumers' loop over tiles. Finish: what follows the products of a tile, as
// sm90/halo/epilogue.h; begin(tile) is called before them, store(d) after.
template <class Plan, class Finish, class Params>
__device__ void Consume(const Params& params, const Memory<Plan>& memory, int warpgroup) {
  const int thread = threadIdx.x - kWarpgroupThreads;
  ClearBorders(params, memory, thread);
  FindPlaces(params, memory, thread);
  sm90::SyncConsumers(Plan::kWarpgroups);
  MainLoop<Plan> main_loop(params, memory, warpgroup);
  Finish finish(params, memory, warpgroup);
  Turns<Plan> turns(memory.barriers(), warpgroup);
  WaitForPredecessors();
  const Tiles<Plan> tiles{params};
  const int first = Plan::kInTurns ? tiles.first + warpgroup * tiles.step : tiles.first;
  const int step = Plan::kInTurns ? Plan::kWarpgroups * tiles.step : tiles.step;
  for (int index = first; index < params.tiles; index += step) {
    typename MainLoop<Plan>::Accumulators d;
    finish.begin(tiles.at(index));
    turns.take();
    main_loop.multiply(d);
    turns.pass();
    main_loop.finish(d);
    finish.store(d);
  }
}

template <class Plan>
__device__ void SyncBlocks() {
  if constexpr (Plan::kCluster > 1)
    sm90::SyncCluster();
  else
    __syncthreads();
}

template <class Plan, class Finish, class Params>
__global__ void __launch_bounds__(Plan::kThreads, 1)
    HaloKernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) char shared[];
  const Memory<Plan> memory{shared};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    sm90::Prefetch(params.x);
    sm90::Prefetch(params.filter);
    InitializeBarriers<Plan>(memory.barriers());
  }
  SyncBlocks<Plan>();
  LaunchDependents();
  if (warpgroup == 0) {
    if constexpr (Plan::kWarpgroups > 1) sm90::ReleaseRegisters<Plan::kProducerRegisters>();
    if (warp == 0 && sm90::ElectOne()) {
      WaitForPredecessors();
      LoadInputs(params, memory);
    } else if (warp == 1 && sm90::ElectOne()) {
      LoadFilters(params, memory);  // weights do not depend on the kernels before
    } else if (warp == 2 && sm90::ElectOne()) {
      Finish::load_weights(params, memory);
    }
  } else {
    if constexpr (Plan::kWarpgroups > 1) sm90::ClaimRegisters<Plan::kConsumerRegisters>();
    Consume<Plan, Finish>(params, memory, warpgroup - 1);
  }
  if constexpr (Plan::kCluster > 1) {
    __syncwarp();
    SyncBlocks<Plan>();  // until the other blocks no longer write to this block's memory or signal
                         // its barriers
  }
}

}  // namespace halo
}  // namespace onnxbolt
