// Convolution for sm_90a without im2col traffic: a spatial tile with its border is loaded once, and each filter position is the same
// shared memory read from another pixel on (halo/geometry.h). Output channels are the rows of the product, pixels its columns, so that
// few channels fill a wgmma and shared-memory bandwidth is not the limit.
//
// Persistent and warp-specialized: two producer warps, and consumer warpgroups of 64 output channels each. Cooperative ones share a
// tile's pixels; in turns (pingpong) each has tiles of its own, and one's epilogue runs under another's main loop.
#pragma once
#include "dependent_launch.h"
#include "halo/consumer.h"
#include "halo/epilogue.h"
#include "halo/producer.h"
#include "sm90/tensor_map.h"

namespace onnxbolt {
namespace halo {

template <class Plan>
__device__ void InitializeBarriers(Barriers& barriers) {
  constexpr int kReaders = Plan::kInTurns ? 1 : Plan::kWarpgroups;
  const int i = threadIdx.x;
  if (i < Plan::kInputStages) {
    barriers.input_full[i].init(1);
    barriers.input_empty[i].init(kReaders);
  }
  if (i < Plan::kFilterStages) {
    barriers.filter_full[i].init(1);
    barriers.filter_empty[i].init(kReaders * Plan::kCluster);
  }
  if (i < Plan::kWarpgroups) barriers.turn[i].init(1);
  sm90::FenceBarrierInit();
}

// No copy writes behind the boxes: these zeros stay.
template <class Plan>
__device__ void ClearBorders(const Params& params, const Memory<Plan>& memory) {
  const Geometry& tile = params.tile;
  const int begin = tile.box_pixels() * Plan::kRowBytes, bytes = tile.zero_pixels * Plan::kRowBytes;
  for (int stage = 0; stage < Plan::kInputStages; ++stage) {
    char* zeros = memory.input(stage) + begin;
    for (int i = threadIdx.x * 16; i < bytes; i += Plan::kThreads * 16) *reinterpret_cast<uint4*>(zeros + i) = uint4{};
  }
  sm90::FenceAsyncProxy();
}

// The main loops of warpgroups in turns follow one another. A wait sees one phase of a stage ahead only, so a warpgroup must not
// look at its stages while the one before it is still at an earlier phase of theirs.
template <class Plan>
struct Turns {
  Barriers& barriers;
  const int warpgroup;
  uint32_t parity;

  __device__ Turns(Barriers& barriers, int warpgroup) : barriers(barriers), warpgroup(warpgroup), parity(warpgroup == 0) {}

  __device__ void take() {
    if (Plan::kInTurns) barriers.turn[warpgroup].wait(parity);
    parity ^= 1;
  }

  __device__ void pass() {
    if (Plan::kInTurns && threadIdx.x % kWarpgroupThreads == 0) barriers.turn[(warpgroup + 1) % Plan::kWarpgroups].arrive();
  }
};

template <class Plan>
__device__ void Consume(const Params& params, const Memory<Plan>& memory, int warpgroup) {
  MainLoop<Plan> main_loop(params, memory, warpgroup);
  Epilogue<Plan> epilogue(params, memory, warpgroup);
  Turns<Plan> turns(memory.barriers(), warpgroup);
  WaitForPredecessors();
  const Tiles<Plan> tiles{params};
  const int first = Plan::kInTurns ? tiles.first + warpgroup * tiles.step : tiles.first;
  const int step = Plan::kInTurns ? Plan::kWarpgroups * tiles.step : tiles.step;
  for (int index = first; index < params.tiles; index += step) {
    typename MainLoop<Plan>::Accumulators d;
    epilogue.begin(tiles.at(index));
    turns.take();
    main_loop.multiply(d);
    turns.pass();
    main_loop.finish(d);
    epilogue.store(d);
  }
}

template <class Plan>
__device__ void SyncBlocks() {
  if constexpr (Plan::kCluster > 1) sm90::SyncCluster();
  else __syncthreads();
}

template <class Plan>
__global__ void __launch_bounds__(Plan::kThreads, 1) HaloKernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) char shared[];
  const Memory<Plan> memory{shared};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  InitializeBarriers<Plan>(memory.barriers());
  if (threadIdx.x == 0) {
    sm90::Prefetch(params.x);
    sm90::Prefetch(params.filter);
  }
  ClearBorders(params, memory);
  FindPlaces(params, memory);
  SyncBlocks<Plan>();
  LaunchDependents();
  if (warpgroup == 0) {
    if constexpr (Plan::kWarpgroups > 1) sm90::ReleaseRegisters<Plan::kProducerRegisters>();
    if (warp == 0 && sm90::ElectOne()) {
      WaitForPredecessors();
      LoadInputs(params, memory);
    } else if (warp == 1 && sm90::ElectOne()) {
      LoadFilters(params, memory);  // weights do not depend on the kernels before
    }
  } else {
    if constexpr (Plan::kWarpgroups > 1) sm90::ClaimRegisters<Plan::kConsumerRegisters>();
    Consume(params, memory, warpgroup - 1);
  }
  if constexpr (Plan::kCluster > 1) {
    __syncwarp();
    SyncBlocks<Plan>();  // the others still write to this block's memory and signal its barriers
  }
}

}  // namespace halo

// y[n, p, q, k] = epilogue(x * filter), strides 1 or 2, for fp16 and bf16. The columns of its configuration: halo/block.h.
template <class Config, class ElementType, class OutputType, class Chain>
struct HaloSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = halo::Plan<Config, Element, Output, Chain>;
  static constexpr int kSharedMemory = Plan::kSharedMemory;
  static constexpr int kAlign = 8;

  static const char* prepare() { return ReserveSharedMemory(halo::HaloKernel<Plan>, kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = CheckExtents(int64_t(conv.n) * conv.p * conv.q, conv.k, int64_t(conv.r) * conv.s * conv.c)) return error;
    if (conv.groups != 1) return "halo convolutions need groups == 1";
    if (conv.dilation_h != 1 || conv.dilation_w != 1) return "halo convolutions need dilation 1";
    if (conv.stride_h != conv.stride_w || conv.stride_h < 1 || conv.stride_h > 2) return "halo convolutions need equal strides of 1 or 2";
    if (conv.c % kAlign != 0 || conv.x_pitch % kAlign != 0 || !IsAligned(conv.x, 16) || !IsAligned(conv.filter, 16))
      return "x, its pitch, the filter or c is not aligned to 16 bytes";
    if (conv.k % kAlign != 0 || conv.y_pitch % kAlign != 0 || !IsAligned(conv.y, 16)) return "y, its pitch or k is not aligned to 16 bytes";
    return CheckOperands<Chain, Element>(conv.epilogue, kAlign);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (int64_t(conv.n) * conv.p * conv.q * conv.k == 0) return nullptr;
    halo::Params params = describe(conv, launch);
    if (const char* error = check(conv, params, launch.sm_count)) return error;
    if (const char* error = encode(conv, params)) return error;
    return LaunchDependent(halo::HaloKernel<Plan>, grid(params, launch.sm_count), Plan::kThreads, launch.stream, params, Row::at(kArch),
                           kSharedMemory, Plan::kCluster);
  }

 private:
  static halo::Params describe(const ConvArguments& conv, const Launch& launch) {
    halo::Params params{};
    params.tile = halo::FitGeometry(conv, int(launch.config[kWarpM]), int(launch.config[kWarpN]), int(launch.config[kWarpK]),
                                    Plan::kPositions, Plan::kStagePixels);
    params.n = conv.n, params.p = conv.p, params.q = conv.q, params.k = conv.k, params.c = conv.c, params.r = conv.r, params.s = conv.s;
    params.pad_top = conv.pad_top, params.pad_left = conv.pad_left, params.stride = conv.stride_h;
    params.channel_blocks = CeilDivide(conv.k, Plan::kTileChannels);
    params.k_blocks = CeilDivide(conv.c, Plan::kBlockK);
    const int spatial_tiles = params.tile.column_blocks * params.tile.row_blocks * params.tile.image_blocks;
    params.tiles = CeilDivide(spatial_tiles, Plan::kCluster) * params.channel_blocks;
    params.y = conv.y, params.y_pitch = conv.y_pitch, params.epilogue = conv.epilogue;
    return params;
  }

  static const char* check(const ConvArguments& conv, const halo::Params& params, int sm_count) {
    const halo::Geometry& tile = params.tile;
    if (!halo::Fits(tile, conv, Plan::kPositions, Plan::kStagePixels)) return "no tile of the kernel holds the filter's border";
    const int last = (Plan::kPositions / halo::kGroup - 1) * tile.group_pitch + halo::kGroup +
                     (conv.r - 1) / conv.stride_h * tile.row_pitch + (conv.s - 1) / conv.stride_w;
    if ((Plan::kInputStages - 1) * Plan::kInputBytes + last * Plan::kRowBytes > kSharedMemory)
      return "positions beyond the tile would be read outside of shared memory";
    if (Plan::kKeepsFilter && params.k_blocks * conv.r * conv.s > Plan::kFilterStages) return "the filters do not fit beside the tiles";
    if (Plan::kKeepsFilter && params.channel_blocks > sm_count) return "more blocks of output channels than SMs to keep their filters";
    return nullptr;
  }

  static const char* encode(const ConvArguments& conv, halo::Params& params) {
    const halo::Geometry& tile = params.tile;
    constexpr auto kType = sm90::kOperandType<Element>;
    constexpr int kBytes = sizeof(Element), kRow = Plan::kRowBytes / kBytes;
    const int64_t pixel = conv.x_pitch * kBytes, row = pixel * conv.w, filter_row = int64_t(conv.c) * kBytes;
    const char* error = sm90::EncodeTiled(
        params.x, kType, kBytes, conv.x,
        {{conv.c, 0, kRow}, {conv.w, pixel, tile.row_pitch, conv.stride_w}, {conv.h, row, tile.image_rows, conv.stride_h},
         {conv.n, row * conv.h, tile.images}},
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B);  // not the next k-block's channels: the first tile is waited for
    if (error) return error;
    return sm90::EncodeTiled(params.filter, kType, kBytes, conv.filter,
                             {{conv.c, 0, kRow}, {int64_t(conv.r) * conv.s, filter_row, 1},
                              {conv.k, filter_row * conv.r * conv.s, Plan::kFilterShare}});
  }

  // Blocks that keep their filters have the same output channels in all their tiles.
  static int grid(const halo::Params& params, int sm_count) {
    const int clusters = std::min(params.tiles, sm_count / Plan::kCluster);
    return Plan::kKeepsFilter ? clusters / params.channel_blocks * params.channel_blocks : clusters * Plan::kCluster;
  }
};

}  // namespace onnxbolt
