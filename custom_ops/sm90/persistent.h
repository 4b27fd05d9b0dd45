// A persistent, warp-specialized kernel for products on sm_90a: GEMM, and convolution as implicit
// GEMM.
//
// How it works:
//
// 1. There are as many blocks as fit the GPU at once; each works through several output tiles
//    (sm90/schedule.h), so that a tile's loads begin while the tile before is being finished.
// 2. The producer warpgroup (sm90/producer.h) fills a ring in shared memory with k-blocks of A and
// B
//    by TMA. A stage is full when its bytes have arrived, and empty when all consumers have read
//    it.
// 3. One to three consumer warpgroups (sm90/consumer.h) multiply full stages by wgmma, with
//    accumulators in registers, which setmaxnreg moves to them from the producer.
// 4. The epilogue (sm90/epilogue.h) applies the steps to the accumulators, stages the result in
//    shared memory and stores it by TMA.
//
// Consumers either share the rows of a tile (cooperative), or have a tile each and take turns with
// the main loop (pingpong), so that the epilogue of one runs under the products of the other. Where
// there are fewer tiles than SMs, the blocks of a cluster can share a tile's k-blocks
// (sm90/split_k.h).
//
// Constraints: rows of A, B and the output are multiples of 16 bytes at 16-byte aligned addresses,
// as TMA requires. Within a kernel the tile, the k-block and the number of consumers are constants;
// sm90/shape.h has the rules that they keep.
#pragma once
#include <numeric>

#include "runtime/dependent_launch.h"
#include "runtime/integers.h"
#include "sm90/consumer.h"
#include "sm90/producer.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
__device__ void InitializeBarriers(typename K::Barriers& barriers) {
  for (int i = 0; i < K::kStages; ++i) {
    barriers.full[i].init(1);
    barriers.empty[i].init(
        K::kGroupsOfTile *
        (K::kClusterM + K::kClusterN - 1));  // one arrival for each block that multiplies this load
  }
  barriers.weights.init(1);
  barriers.begun.init(1);
  for (int group = 0; group < K::kGroups; ++group) {
    barriers.turn[group].init(1);
    for (int i = 0; i < K::Finish::kBuffers; ++i) {
      barriers.residual_loaded[group][i].init(1);
      barriers.residual_free[group][i].init(kWarps);
    }
  }
  FenceBarrierInit();
}

template <class K>
__device__ void PrefetchMaps(const Params& params) {
  Prefetch(params.a);
  Prefetch(params.b);
  if constexpr (!K::kNchw && !K::kMean) Prefetch(params.d);
  if constexpr (K::Finish::kResidual) Prefetch(params.residual);
}

// Moves registers from the producer to the consumers, which hold the accumulators; most of them
// where these have three sets of sums. A single consumer has enough from the start.
template <int Groups, bool Most>
struct RegisterSplit {
  static constexpr bool kUsed = Groups > 1;
  static constexpr int kProducer = Groups == 4 || Most ? 32 : 56;
  static constexpr int kConsumer = Groups == 4 ? 112 : (Groups == 3 ? 152 : 224) + (Most ? 8 : 0);
};

// Runs produce(warp) in the producer warpgroup and consume(group) in each consumer warpgroup.
template <class K, bool Most = false, class Produce, class Consume>
__device__ void SplitRoles(const Produce& produce, const Consume& consume) {
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0),
            warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  using Split = RegisterSplit<K::kGroups, Most>;
  if (group == 0) {
    if constexpr (Split::kUsed) ReleaseRegisters<Split::kProducer>();
    produce(warp);
  } else {
    if constexpr (Split::kUsed) ClaimRegisters<Split::kConsumer>();
    consume(group - 1);
  }
}

template <class K, bool kIsImage, class End>
__device__ void Run(const typename End::Params& params, SharedMemory<K> memory) {
  SplitRoles<K, K::kTakesTurns>(
      [&](int warp) {
        if (warp == 0 && ElectOne())
          Producer<K, kIsImage, NothingBehind<typename End::Params>>(params, memory).run();
        if constexpr (K::Finish::kResidual) {
          if (warp == 1 && ElectOne()) ResidualProducer<K>(params, memory).run();
        }
      },
      [&](int group) { Consumer<K, End>(params, memory, group).run(); });
}

// The kernel. It overlaps with its neighbours in the stream (runtime/dependent_launch.h): barriers
// and the first weights do not wait for the kernel before.
template <class K, bool kIsImage, class End = TileEnd<K>>
__global__ void __launch_bounds__(K::kThreads, 1)
    PersistentKernel(const __grid_constant__ typename End::Params params) {
  extern __shared__ __align__(1024) char shared[];
  const SharedMemory<K> memory{shared};
  if (threadIdx.x == 0) {
    PrefetchMaps<K>(params);
    InitializeBarriers<K>(memory.barriers());
  }
  if constexpr (K::kClusterSize > 1)
    SyncCluster();
  else
    __syncthreads();
  LaunchDependents();
  Run<K, kIsImage, End>(params, memory);
  if constexpr (K::kClusterSize > 1) {
    __syncwarp();
    SyncCluster();  // until the other blocks have sent their last signals to this block's barriers
  }
}

// The number of blocks: one for each tile if all fit the GPU at once, else as many as fit, each
// with several tiles.
template <class K, class KernelParams>
int GridSize(const KernelParams& params, int sm_count) {
  const int tiles = params.schedule.count();
  if (params.split > 1) return tiles * params.split;
  int clusters = std::min(tiles, std::max(sm_count / K::kClusterSize, 1));
  if constexpr (K::Range::kSkipsTaps) {
    // Columns of tiles take unlike times: a block's tiles are of all columns in turn.
    if (params.skips_taps && clusters < tiles) {
      while (std::gcd(clusters, params.schedule.columns) > 1) --clusters;
    }
  }
  if constexpr (K::kIsResident)
    clusters = clusters / params.schedule.columns *
               params.schedule.columns;  // so that a block's tiles are all in one column
  return clusters * K::kClusterSize;
}

template <class K, bool kIsImage, class End = TileEnd<K>>
const char* LaunchKernel(const typename End::Params& params, const Launch& launch) {
  return LaunchDependent(PersistentKernel<K, kIsImage, End>, GridSize<K>(params, launch.sm_count),
                         K::kThreads, launch.stream, params,
                         ArchOf<typename K::Row>::kDependentLaunch, K::kSharedMemory,
                         K::kClusterSize * params.split);
}

// A tensor map of images [count, pixels, columns] whose pixels are rows of a tile: 64 rows for each
// image, zeros behind its last pixel.
inline const char* EncodeImages(CUtensorMap& map, CUtensorMapDataType type, int64_t element_bytes,
                                const void* data, int64_t pitch, int64_t columns, int64_t pixels,
                                int64_t count, int box_columns, int box_images) {
  const int64_t row = pitch * element_bytes;
  return EncodeTiled(
      map, type, static_cast<int>(element_bytes), data,
      {{columns, 0, box_columns}, {pixels, row, kImageRows}, {count, row * pixels, box_images}});
}

// Fills in the parameters that GEMM and convolution share: the schedule, the k-blocks, the output
// and the residual. `depth`: channels of a filter position. Kernels that average images need the
// activations described before this call.
template <class K>
const char* DescribeOutput(Params& params, int64_t rows, int64_t columns, int64_t depth, int taps,
                           void* d, int64_t pitch, const EpilogueArguments& operands,
                           const int64_t* config) {
  using Finish = typename K::Finish;
  using Output = typename K::Output;
  if (config[kSplitK] < 1 || config[kSwizzle] < 1) return "split_k and swizzle are 1 at least";
  params.rows = static_cast<int>(rows), params.columns = static_cast<int>(columns);
  params.blocks_per_tap = static_cast<int>(CeilDivide(depth, K::kTileK));
  params.blocks = params.blocks_per_tap * taps;
  params.split = static_cast<int>(config[kSplitK]);
  params.operands = operands;
  const auto tiles = [](int64_t extent, int size) {
    return static_cast<int>(CeilDivide(extent, size));
  };
  params.schedule = TileSchedule(tiles(rows, K::kTileM * K::kClusterM),
                                 tiles(columns * K::kFold, K::kTileN * K::kClusterN),
                                 K::kIsResident ? 1 : static_cast<int>(config[kSwizzle]));
  const auto encode = [&](CUtensorMap& map, const void* data, int64_t data_pitch, int box_columns,
                          int box_rows) {
    return EncodeTiled(
        map, kPlainType<Output>, sizeof(Output), data,
        {{columns, 0, box_columns}, {rows, data_pitch * int64_t(sizeof(Output)), box_rows}});
  };
  if constexpr (Finish::kResidual) {
    // a cast between types of 16 bits leaves the residual in the input's type: TMA moves bytes
    const void* residual = operands.tensors[0];
    const int64_t residual_pitch = operands.tensor_pitch[0];
    const char* error =
        K::kMean ? EncodeImages(params.residual, kPlainType<Output>, sizeof(Output), residual,
                                residual_pitch, columns, params.plane_pixels, rows / kImageRows,
                                Finish::kUnitColumns, 1)
                 : encode(params.residual, residual, residual_pitch, Finish::kUnitColumns, 64);
    if (error) return error;
  }
  if constexpr (K::kNchw || K::kMean)
    return nullptr;
  else if constexpr (K::kSwapped)
    return encode(params.d, d, pitch, kUnitChannels, K::kTileM);
  else
    return encode(params.d, d, pitch, Finish::kUnitColumns, kStoredRows);
}

// The tensor map of weights [kFold columns, taps, depth]; `pitch`: elements from one row to the
// next. Rows are in the order of sm90/codes.h if results have 8 bits.
template <class K>
const char* DescribeWeights(Params& params, const void* weights, int64_t columns, int taps,
                            int64_t depth, int64_t pitch) {
  using Element = typename K::Element;
  constexpr int64_t kSize = sizeof(Element);
  if constexpr (K::kPairsColumns)
    return EncodeTiled(params.b, kOperandType<Element>, kSize, weights,
                       {{taps * depth, 0, K::kBoxK},
                        {2, pitch, 2},
                        {4, 4 * pitch, 4},
                        {2, 2 * pitch, 2},
                        {columns / kPairedColumns, kPairedColumns * pitch,
                         K::kTileN / K::kClusterM / kPairedColumns}});
  return EncodeTiled(params.b, kOperandType<Element>, kSize, weights,
                     {{depth, 0, K::kBoxK},
                      {taps, depth * kSize, 1},
                      {columns * K::kFold, pitch * kSize, K::kTileN / K::kClusterM}});
}

// The tensor map of A if its rows are a matrix.
template <class K>
const char* DescribeMatrix(Params& params, const void* a, int64_t rows, int64_t depth,
                           int64_t pitch) {
  using Element = typename K::Element;
  constexpr int64_t kSize = sizeof(Element);
  params.a_is_matrix = true;
  return EncodeTiled(params.a, kOperandType<Element>, kSize, a,
                     {{depth, 0, K::kBoxK}, {rows, pitch * kSize, K::kTileM / K::kClusterN}},
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B);  // 128 B: fetching the next k-block as
                                                           // well would delay the first tile
}

// Checks a problem and the launch choices of a row, except for alignments. Returns nullptr if the
// kernel serves them, else what is wrong.
template <class K>
const char* CheckProblem(int64_t rows, int64_t columns, int64_t depth, int64_t taps) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(typename K::Output));
  if (!K::kNchw && columns % kWide != 0)
    return "the output's rows are not multiples of 16 bytes, as TMA needs";
  if (rows > 0x7fffffff - K::kTileM * K::kClusterM) return "an extent is too close to 2^31";
  const int64_t blocks = CeilDivide(depth, K::kTileK) * taps;
  if (blocks > 0x7fffffff / K::kMaxSplit)
    return "there are too many k-blocks for their shares to be reckoned in 32 bits";
  if (K::kIsResident && blocks > K::kBlocksOfB)
    return "the weights of one block's channels do not fit its shared memory";
  return nullptr;
}

// Checks the launch choices of a row. can_implement does not see them, so they are checked at each
// launch.
template <class K>
const char* CheckLaunch(const Params& params, int sm_count) {
  if (K::kIsResident && params.schedule.columns > sm_count)
    return "resident weights need an SM for each column of tiles";
  if (params.split == 1) return nullptr;
  if (!K::kCanSplit)
    return "this kernel cannot split k: it is pingpong, swapped, resident, in clusters, or its tile is too large";
  if (params.split > K::kMaxSplit ||
      (K::kUnitsOfTile % params.split != 0 && params.split % K::kUnitsOfTile != 0))
    return "split_k has to divide the units of a tile, or they it; at most 8";
  if (params.split * SplitSums<K>::kSlotBytes > K::kStages * K::kStageBytes)
    return "split_k is too large for this kernel's stages";
  return params.split > params.blocks ? "split_k exceeds the number of k-blocks" : nullptr;
}

}  // namespace sm90
}  // namespace onnxbolt
