// A block of a halo convolution: its constants, its shared memory, the parameters of a launch, its
// tiles.
#pragma once
#include "sm90/halo/geometry.h"
#include "runtime/instance.h"
#include "sm90/barrier.h"
#include "sm90/divisor.h"
#include "sm90/tma.h"
#include "sm90/wgmma.h"

namespace onnxbolt {
namespace halo {

constexpr int kWarpgroupThreads = 128;
constexpr int kChannels = 64;  // output channels of a warpgroup: the rows of a wgmma instruction
constexpr int kBarrierMemory = 1024;
constexpr int kMaxPositions = 256;
constexpr int kMaxInputStages = 8;
constexpr int kMaxFilterStages = 48;

// A position's place in its tile: output pixels behind the tile's first one, and (column, row,
// image) in fields of ten bits.
struct Place {
  int pixel;
  uint32_t coordinates;

  static constexpr uint32_t kGuards =
      1u << 9 | 1u << 19 | 1u << 29;  // a bit above the largest coordinate of each field

  __device__ static constexpr uint32_t pack(int column, int row, int image) {
    return column | row << 10 | image << 20;
  }

  // The place of a position that is no pixel of any tile.
  __device__ static constexpr uint32_t nowhere() { return pack(511, 511, 511); }

  __device__ int image() const { return coordinates >> 20; }

  // True if no coordinate exceeds that of `last`: then no subtraction borrows from a guard bit.
  __device__ bool within(uint32_t last) const {
    return (((last | kGuards) - coordinates) & kGuards) == kGuards;
  }
};

// The shared memory of 1x1 convolutions behind the first one: nothing if there are none. Families
// with such layers have a type of their own in its place.
struct OneLayer {
  static constexpr int kWeightBytes = 0;
  static constexpr int kTileBytes =
      0;  // a warpgroup's activated channels, the next product's operand
  static constexpr bool kTileBecomesStaging = false;
};

// Constants of an instance. `stages` of its configuration are input stages; (columns, rows, images)
// of a tile are left to the launch.
//
// Shared memory: input stages (box and zeros behind it), further layers' weights, filter stages
// (one filter position of one k-block), each warpgroup's tile for a further layer and its staging
// (two chunks of the output, and of each tensor operand), barriers, and places of the positions.
// The ring of filters gets the remaining memory.
template <class Config, class ElementType, class OutputType, class ChainType,
          class FurtherLayers = OneLayer>
struct Plan {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;
  static constexpr bool kNchw = Row::at(kAlignC) == 1;  // y is NCHW
  static constexpr int kWarpgroups = Row::at(kConsumers),
                       kConsumerThreads = kWarpgroups * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;
  static constexpr int kCluster = Row::at(kClusterN);  // blocks of a cluster: they have the same
                                                       // output channels and share loads of filters
  static constexpr bool kInTurns =
      Row::at(kSchedule) == kPingpong;  // each warpgroup has tiles of its own
  static constexpr bool kKeepsFilter =
      Row::at(kResident) == 1;  // the filters of a block's output channels are loaded once
  static constexpr int kTileChannels = Row::at(kTileM), kPositions = Row::at(kTileN),
                       kBlockK = Row::at(kTileK);
  // setmaxnreg moves registers to the warpgroups with accumulators. A launch gives each of three
  // warpgroups 168, each of four 128.
  static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : 40,
                       kConsumerRegisters = kWarpgroups == 3 ? 160 : 232;
  // bytes of a pixel, and of an output channel's filter: the width of a swizzle, of which a k-block
  // of 48 channels uses a part
  static constexpr int kRowBytes = (kBlockK == 48 ? 64 : kBlockK) * sizeof(Element);
  static constexpr int kStagePixels = Row::at(kInstructionM), kInputStages = Row::at(kStages);

  // Positions that the epilogue stages at a time. A single warpgroup has no other to hide its
  // epilogue, so it takes fewer, longer steps.
  static constexpr int kChunk = kWarpgroups == 1 ? 64 : 32;

  static constexpr int kInputBytes = kStagePixels * kRowBytes;
  static constexpr int kFilterBytes = kTileChannels * kRowBytes;
  static constexpr int kFilterShare =
      kTileChannels / kCluster;  // output channels that a block of a cluster loads
  static constexpr int kOutputChunk = kChunk * kChannels * sizeof(Output),
                       kTensorChunk = kChunk * kChannels * sizeof(Element);
  static constexpr int kStagingBytes = 2 * (kOutputChunk + Chain::kTensors * kTensorChunk);
  static constexpr int kStagingBegin =
      FurtherLayers::kTileBecomesStaging ? 0 : FurtherLayers::kTileBytes;
  static constexpr int kWarpgroupBytes =
      std::max(FurtherLayers::kTileBytes, kStagingBegin + kStagingBytes);
  static constexpr int kPlaceBytes = kMaxPositions * sizeof(Place);
  static constexpr int kFilterRoom = ArchOf<Row>::kSharedMemory - kBarrierMemory - kPlaceBytes -
                                     kInputStages * kInputBytes - FurtherLayers::kWeightBytes -
                                     kWarpgroups * kWarpgroupBytes;
  static constexpr int kFilterStages = std::min(kMaxFilterStages, kFilterRoom / kFilterBytes);

  static constexpr int kWeightOffset = kInputStages * kInputBytes;
  static constexpr int kWarpgroupOffset = kWeightOffset + FurtherLayers::kWeightBytes;
  static constexpr int kFilterOffset = kWarpgroupOffset + kWarpgroups * kWarpgroupBytes;
  static constexpr int kBarrierOffset = kFilterOffset + kFilterStages * kFilterBytes;
  static constexpr int kPlaceOffset = kBarrierOffset + kBarrierMemory;
  static constexpr int kSharedMemory = kPlaceOffset + kPlaceBytes;

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(sizeof(Element) == 2, "halo convolutions multiply fp16 and bf16");
  static_assert(!kNchw || Chain::kTensors == 0, "tensors that are added have their channels last");
  static_assert(kTileChannels == (kInTurns ? kChannels : kWarpgroups * kChannels),
                "a warpgroup has 64 output channels");
  static_assert(kWarpgroups <= 2 || (kWarpgroups == 3 && kPositions <= 128),
                "three warpgroups have too few registers for more positions");
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32,
                "a k-block has the width of a swizzle");
  static_assert(kCluster == 1 || (!kKeepsFilter && kFilterShare % 8 == 0),
                "a cluster shares filters that are loaded again and again");
  static_assert(kStagePixels % 8 == 0, "stages begin where the pattern of a swizzle does");
  static_assert(kPositions % 16 == 0 && kPositions <= kMaxPositions,
                "positions come in pairs of groups, and a wgmma has at most 256");
  // A stage is released when the next one is in use.
  static_assert(kInputStages >= 2 && kInputStages <= kMaxInputStages && kFilterStages >= 2,
                "no room for the rings");
};

struct Barriers {
  sm90::Barrier input_full[kMaxInputStages], input_empty[kMaxInputStages];
  sm90::Barrier filter_full[kMaxFilterStages], filter_empty[kMaxFilterStages];
  sm90::Barrier turn[3];
  sm90::Barrier weights;  // the further layers' weights have arrived
};
static_assert(sizeof(Barriers) <= kBarrierMemory);

template <class Plan>
struct Memory {
  char* base;

  __device__ char* input(int stage) const { return base + stage * Plan::kInputBytes; }
  __device__ char* filter(int stage) const {
    return base + Plan::kFilterOffset + stage * Plan::kFilterBytes;
  }
  __device__ char* weights() const { return base + Plan::kWeightOffset; }
  __device__ char* tile(int warpgroup) const {
    return base + Plan::kWarpgroupOffset + warpgroup * Plan::kWarpgroupBytes;
  }
  __device__ char* staging(int warpgroup) const { return tile(warpgroup) + Plan::kStagingBegin; }
  __device__ Place* places() const { return reinterpret_cast<Place*>(base + Plan::kPlaceOffset); }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(base + Plan::kBarrierOffset);
  }
};

// Groups of a convolution's channels, and the sizes of each. A block of output channels is in one
// group.
struct ChannelGroups {
  int count, columns, blocks;  // columns: output channels
  int depth;                   // input channels
};

// The order of tiles: blocks of output channels fastest, then columns, rows and images.
struct TileOrder {
  sm90::Divisor channel_blocks, group_blocks, columns, rows;
};

struct Params {
  CUtensorMap x, filter;
  Geometry tile;
  int n, p, q, k, c, r, s, pad_top, pad_left, stride;
  int channel_blocks;  // blocks of output channels, in all groups
  int k_blocks;        // k-blocks of a group's input channels
  int tiles;           // tiles of clusters: such a tile is one tile for each block of a cluster
  ChannelGroups groups;
  TileOrder order;
  void* y;
  int64_t y_pitch;
  EpilogueArguments epilogue;
};

// A tile's first output pixel and output channel, its group, and the end of the group's output
// channels.
struct Tile {
  int image, row, column, channel, group, end;
};

// This block's tiles: first, first + step, .. below params.tiles. Neighbouring clusters have the
// same pixels and other output channels, so that L2 serves the pixels; the blocks of a cluster have
// the same channels and neighbouring pixels.
template <class Plan>
struct Tiles {
  const Params& params;
  const int rank = Plan::kCluster > 1 ? sm90::ClusterRank() : 0;
  const int first = blockIdx.x / Plan::kCluster, step = gridDim.x / Plan::kCluster;

  __device__ Tile at(int index) const;
};

template <class Plan>
__device__ Tile Tiles<Plan>::at(int index) const {
  const Geometry& tile = params.tile;
  const ChannelGroups& groups = params.groups;
  int block = index, image = params.order.channel_blocks.split(block) * Plan::kCluster + rank;
  const int group = params.order.group_blocks.split(block);
  const int channel = group * groups.columns + block * Plan::kTileChannels;
  const int end = params.k - (groups.count - 1 - group) * groups.columns;
  int column = image, row = params.order.columns.split(column);
  image = params.order.rows.split(row);
  return {image * tile.images, row * tile.rows, column * tile.columns, channel, group, end};
}

// Calls body(k_block, row phase, column phase) for each input stage of a tile, in the order in
// which producer and consumers take them.
template <class Body>
__device__ void ForEachStage(const Params& params, Body body) {
  for (int k_block = 0; k_block < params.k_blocks; ++k_block)
    for (int phase_row = 0; phase_row < min(params.stride, params.r); ++phase_row)
      for (int phase_column = 0; phase_column < min(params.stride, params.s); ++phase_column)
        body(k_block, phase_row, phase_column);
}

// Calls body(r, s) for each filter position that reads the pixels of a phase.
template <class Body>
__device__ void ForEachTap(const Params& params, int phase_row, int phase_column, Body body) {
  for (int r = phase_row; r < params.r; r += params.stride)
    for (int s = phase_column; s < params.s; s += params.stride) body(r, s);
}

}  // namespace halo
}  // namespace onnxbolt
