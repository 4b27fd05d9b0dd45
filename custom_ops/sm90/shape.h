// The static facts of one kernel: its tile, who works on it, and what lies where in shared memory.
#pragma once
#include <algorithm>

#include "runtime/instance.h"
#include "runtime/integers.h"
#include "sm90/epilogue.h"
#include "sm90/mean.h"
#include "sm90/nchw.h"
#include "sm90/swapped.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kMaxStages = 16;

// Cooperative: the consumer warpgroups share a tile, each has a part of its rows. Pingpong: each
// has a tile of its own, and one's epilogue runs under the other's main loop.
//
// Where further products follow a tile's, Columns are those of the output and Chain is its
// epilogue, and ExtraBytes of shared memory are for what they need.
template <class Config, class ElementType, class OutputType, class ChainType,
          int Columns = Config::at(Column::kTileN), int ExtraBytes = 0>
struct KernelShape {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;

  static constexpr bool kIsPingpong = Row::at(Column::kSchedule) == kPingpong,
                        kIsResident = Row::at(Column::kResident) == 1;
  static constexpr int kGroups = Row::at(Column::kConsumers), kThreads = 128 * (kGroups + 1);
  static constexpr int kTileM = Row::at(Column::kTileM), kTileN = Row::at(Column::kTileN),
                       kTileK = Row::at(Column::kTileK);
  static constexpr int kClusterM = Row::at(Column::kClusterM),
                       kClusterN = Row::at(Column::kClusterN), kClusterSize = kClusterM * kClusterN;

  // The product's rows, 64 to a block, are pixels and its columns output channels. Swapped it is
  // the other way round: then a tile has any multiple of 16 pixels, by which a small problem
  // divides evenly among the SMs.
  static constexpr bool kSwapped = Row::at(Column::kInstructionM) == 1;
  static constexpr int kProductRows = kSwapped ? kTileN : kTileM,
                       kProductColumns = kSwapped ? kTileM : kTileN;

  static constexpr int kGroupRows = kIsPingpong ? kProductRows : kProductRows / kGroups,
                       kBlocks = kGroupRows / 64;
  static constexpr int kGroupsOfTile = kIsPingpong ? 1 : kGroups;
  static constexpr bool kPlanes =
      Row::at(Column::kAlignC) == 1;  // y has its channels first, and is stored pixel by pixel
  static constexpr bool kBoth = false, kMean = false;  // see BothShape, MeanShape
  using Unswapped =
      std::conditional_t<kPlanes, PlanesEpilogueShape<Element, Output, Chain, kBlocks, Columns>,
                         EpilogueShape<Element, Output, Chain, kBlocks, Columns>>;
  using Finish =
      std::conditional_t<kSwapped, SwappedEpilogueShape<Output, Chain, kBlocks, kTileM>, Unswapped>;
  using Epilogue = std::conditional_t<
      kSwapped, SwappedEpilogue<Finish>,
      std::conditional_t<kPlanes, PlanesEpilogue<Finish>, sm90::Epilogue<Finish>>>;

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kGroups >= 1 && kGroups <= 3, "one to three consumer warpgroups");
  static_assert(kIsPingpong || Row::at(Column::kSchedule) == kCooperative,
                "a kernel is cooperative or pingpong");
  static_assert(!kIsPingpong || kGroups > 1, "pingpong takes two");
  static_assert(!kSwapped || !kPlanes, "a swapped product is stored with its channels last");
  static_assert(!kSwapped || kGroups == 1, "one warpgroup has all of a swapped tile");
  static_assert(kGroupRows % 64 == 0 && kGroupRows * kGroupsOfTile == kProductRows,
                "a warpgroup multiplies 64 rows at a time");
  static_assert(kClusterSize == 1 || !kIsResident,
                "resident weights are loaded by each block for itself");
  static_assert(kTileM % (8 * kClusterN) == 0 && kTileN % (8 * kClusterM) == 0,
                "a cluster's blocks load whole groups of eight rows");
  static_assert(kTileM / kClusterN <= 256 && kTileN / kClusterM <= 256,
                "TMA copies 256 rows at most");

  // Operands: along K in boxes of one swizzled row each.
  static constexpr int kBoxK = BoxColumns<Element>(kTileK), kBoxes = kTileK / kBoxK,
                       kBoxBytes = kBoxK * sizeof(Element);
  static_assert(kBoxBytes >= 32 && kBoxBytes <= 128, "a k-block is a multiple of 32 bytes");
  static constexpr int kABytes = kTileM * kTileK * sizeof(Element),
                       kBBytes = kTileN * kTileK * sizeof(Element);

  // Shared memory: the ring of A, the weights (a ring, or resident), and per warpgroup staging,
  // vectors and barriers.
  static constexpr int kFixedBytes =
      2048 + ExtraBytes + kGroups * (Finish::kStagingBytes + Finish::kVectorBytes);
  static constexpr int kStageBytes = kABytes + (kIsResident ? 0 : kBBytes);
  static constexpr int kFreeBytes = ArchOf<Row>::kSharedMemory - kFixedBytes;
  static constexpr int kStages = Row::at(Column::kStages) > 0
                                     ? Row::at(Column::kStages)
                                     : std::min(kFreeBytes / kStageBytes, kMaxStages);
  // how many k-blocks of weights a block holds: one per stage, or all that fit
  static constexpr int kBlocksOfB =
      kIsResident ? (kFreeBytes - kStages * kStageBytes) / kBBytes : kStages;
  static_assert(!kIsResident || Row::at(Column::kStages) > 0,
                "resident weights leave no natural number of stages: say one");
  static_assert(kStages >= 2 && kStages * kStageBytes <= kFreeBytes && kBlocksOfB >= 1,
                "the stages do not fit shared memory");

  static constexpr int kOffsetB = kStages * kABytes;
  static constexpr int kOffsetExtra = RoundUp(kOffsetB + kBlocksOfB * kBBytes, 1024);
  static constexpr int kOffsetStaging = kOffsetExtra + ExtraBytes;
  static_assert(ExtraBytes % 1024 == 0, "units begin where swizzles do");
  static constexpr int kOffsetVectors = kOffsetStaging + kGroups * Finish::kStagingBytes;
  static constexpr int kOffsetBarriers = kOffsetVectors + kGroups * Finish::kVectorBytes;

  struct Barriers {
    Barrier full[kStages], empty[kStages];  // of the ring
    Barrier weights;                        // the resident ones are there
    Barrier begun;                          // the first tile's loads are under way
    Barrier turn[kGroups];                  // pingpong: this warpgroup's main loop may begin
    Barrier residual_loaded[kGroups][Finish::kBuffers], residual_free[kGroups][Finish::kBuffers];
  };
  static constexpr int kSharedMemory = kOffsetBarriers + sizeof(Barriers);
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");

  // Split along K, the blocks of a cluster exchange their sums where the ring was. All threads meet
  // before the epilogue begins: none may wait for it, so that a residual needs a buffer for each
  // unit.
  static constexpr bool kCanSplit =
      !kIsPingpong && !kSwapped && kClusterSize == 1 && !kIsResident &&
      kTileM * kTileN * static_cast<int>(sizeof(float)) <= kStages * kStageBytes &&
      (!Finish::kResidual || Finish::kUnits <= Finish::kBuffers);
  static constexpr int kUnitsOfTile = kGroups * Finish::kUnits,
                       kMaxSplit = 8;  // of a cluster that every GPU can place
};

// Of a kernel that writes y with its channels last, in Element, and as planes, in PlaneType.
template <class Config, class ElementType, class PlaneType, class ChainType>
struct BothShape : KernelShape<Config, ElementType, ElementType, ChainType> {
  using Epilogue = BothEpilogue<typename BothShape::Finish, PlaneType>;
  static constexpr bool kBoth = true;
  static_assert(!BothShape::kPlanes && !BothShape::kSwapped,
                "rows of pixels are stored as they are");
};

// Of a kernel whose output is each image's mean behind the chain: a block of 64 rows holds one
// image.
template <class Config, class ElementType, class OutputType, class ChainType>
struct MeanShape : KernelShape<Config, ElementType, OutputType, ChainType> {
  using Epilogue = MeanEpilogue<typename MeanShape::Finish>;
  static constexpr bool kMean = true;
  static_assert(!MeanShape::kPlanes && !MeanShape::kSwapped && MeanShape::kClusterN == 1,
                "images are whole blocks of rows");
};

// The block's shared memory.
template <class K>
struct SharedMemory {
  char* base;

  __device__ char* a(int stage) const { return base + stage * K::kABytes; }
  __device__ char* b(int block) const { return base + K::kOffsetB + block * K::kBBytes; }
  __device__ typename K::Barriers& barriers() const {
    return *reinterpret_cast<typename K::Barriers*>(base + K::kOffsetBarriers);
  }

  __device__ EpilogueMemory<typename K::Finish> epilogue(int group) const {
    return {base + K::kOffsetStaging + group * K::Finish::kStagingBytes,
            reinterpret_cast<float*>(base + K::kOffsetVectors + group * K::Finish::kVectorBytes),
            barriers().residual_loaded[group], barriers().residual_free[group]};
  }
};

}  // namespace sm90
}  // namespace onnxbolt
