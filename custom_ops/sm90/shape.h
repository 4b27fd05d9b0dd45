// The constants of one kernel: its tile, its warpgroups, and the layout of its shared memory.
#pragma once
#include <algorithm>

#include "runtime/instance.h"
#include "runtime/integers.h"
#include "sm90/codes.h"
#include "sm90/epilogue.h"
#include "sm90/mean.h"
#include "sm90/nchw.h"
#include "sm90/params.h"
#include "sm90/swapped.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kMaxStages = 16;

// Cooperative: the consumer warpgroups share a tile, and each has a part of its rows. Pingpong:
// each has a tile of its own, and its epilogue runs under the main loop of another.
//
// Columns are those of the result: of the last product, if further ones follow a tile's, and half
// of the product's if the epilogue has a gate. Chain is the epilogue behind the last product, and
// ExtraBytes is the shared memory that the further products need.
template <class Config, class ElementType, class OutputType, class ChainType,
          int Columns = Config::at(Column::kTileN) / ChainType::kFold, int ExtraBytes = 0>
struct KernelShape {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;
  using Range = BlockRange;  // a tile's k-blocks
  using ProductParams = Params;
  using Sum = SumOf<Element>;

  static constexpr bool kIsPingpong = Row::at(Column::kSchedule) == kPingpong,
                        kIsResident = Row::at(Column::kResident) == 1;
  static constexpr int kGroups = Row::at(Column::kConsumers), kThreads = 128 * (kGroups + 1);
  static constexpr int kTileM = Row::at(Column::kTileM), kTileN = Row::at(Column::kTileN),
                       kTileK = Row::at(Column::kTileK);
  static constexpr int kClusterM = Row::at(Column::kClusterM),
                       kClusterN = Row::at(Column::kClusterN), kClusterSize = kClusterM * kClusterN;

  // The product's rows are pixels, 64 to a block, and its columns are output channels. A swapped
  // kernel has it the other way round: its tile has any multiple of 16 pixels, so that a small
  // problem divides evenly among the SMs.
  static constexpr bool kSwapped = Row::at(Column::kInstructionM) == 1;
  static constexpr int kProductRows = kSwapped ? kTileN : kTileM,
                       kProductColumns = kSwapped ? kTileM : kTileN;

  static constexpr int kGroupRows = kIsPingpong ? kProductRows : kProductRows / kGroups,
                       kBlocks = kGroupRows / 64;
  static constexpr int kGroupsOfTile = kIsPingpong ? 1 : kGroups;
  static constexpr bool kNchw =
      Row::at(Column::kAlignC) == 1;                   // y is NCHW, and is stored pixel by pixel
  static constexpr bool kBoth = false, kMean = false;  // see BothShape, MeanShape
  static constexpr bool kCodes = false, kPairsColumns = false;   // see CodesShape
  static constexpr bool kPromotes = false, kTakesTurns = false;  // see CodesShape
  static constexpr int kFold = Chain::kFold;  // columns of the product for one of the result
  using Unswapped =
      std::conditional_t<kNchw, NchwEpilogueShape<Element, Output, Chain, kBlocks, Columns>,
                         EpilogueShape<Element, Output, Chain, kBlocks, Columns>>;
  using Finish =
      std::conditional_t<kSwapped, SwappedEpilogueShape<Output, Chain, kBlocks, kTileM>, Unswapped>;
  using Epilogue =
      std::conditional_t<kSwapped, SwappedEpilogue<Finish>,
                         std::conditional_t<kNchw, NchwEpilogue<Finish>, sm90::Epilogue<Finish>>>;

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kGroups >= 1 && kGroups <= 3, "one to three consumer warpgroups");
  static_assert(kIsPingpong || Row::at(Column::kSchedule) == kCooperative,
                "a kernel is cooperative or pingpong");
  static_assert(!kIsPingpong || kGroups > 1, "pingpong takes two");
  static_assert(!kSwapped || !kNchw, "a swapped product is stored with its channels last");
  static_assert(!kSwapped || kGroups == 1, "one warpgroup has all of a swapped tile");
  static_assert(kFold == 1 || (!kSwapped && !kNchw && kTileN % 16 == 0),
                "a gate multiplies 8 columns of a row by the 8 columns behind them");
  static_assert(kGroupRows % 64 == 0 && kGroupRows * kGroupsOfTile == kProductRows,
                "a warpgroup multiplies 64 rows at a time");
  static_assert(kClusterSize == 1 || !kIsResident,
                "resident weights are loaded by each block for itself");
  static_assert(kTileM % (8 * kClusterN) == 0 && kTileN % (8 * kClusterM) == 0,
                "a cluster's blocks load whole groups of eight rows");
  static_assert(kTileM / kClusterN <= 256 && kTileN / kClusterM <= 256,
                "TMA copies 256 rows at most");

  // Operands lie in boxes along k; a row of a box is one swizzled row.
  static constexpr int kBoxK = BoxColumns<Element>(kTileK), kBoxes = kTileK / kBoxK,
                       kBoxBytes = kBoxK * sizeof(Element);
  static_assert(kBoxBytes >= 32 && kBoxBytes <= 128, "a k-block is a multiple of 32 bytes");
  static constexpr int kABytes = kTileM * kTileK * sizeof(Element),
                       kBBytes = kTileN * kTileK * sizeof(Element);

  // Shared memory: the ring of A, the weights (a ring, or resident), and for each warpgroup
  // staging, vectors and barriers.
  static constexpr int kFixedBytes =
      2048 + ExtraBytes + kGroups * (Finish::kStagingBytes + Finish::kVectorBytes);
  static constexpr int kStageBytes = kABytes + (kIsResident ? 0 : kBBytes);
  static constexpr int kFreeBytes = ArchOf<Row>::kSharedMemory - kFixedBytes;
  static constexpr int kStages = Row::at(Column::kStages) > 0
                                     ? Row::at(Column::kStages)
                                     : std::min(kFreeBytes / kStageBytes, kMaxStages);
  // k-blocks of weights that a block holds: one for each stage, or all that fit
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
    Barrier full[kStages], empty[kStages];  // the ring's stages
    Barrier weights;                        // the resident weights have arrived
    Barrier begun;                          // the first tile's loads are under way
    Barrier turn[kGroups];                  // pingpong: this warpgroup's main loop may begin
    Barrier residual_loaded[kGroups][Finish::kBuffers], residual_free[kGroups][Finish::kBuffers];
  };
  static constexpr int kSharedMemory = kOffsetBarriers + sizeof(Barriers);
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");

  // If a cluster's blocks share a tile's k-blocks, they exchange their sums in the memory of the
  // ring. All threads meet before the epilogue, so that none may wait for the epilogue's buffers:
  // each unit with a residual needs a buffer of its own.
  static constexpr bool kCanSplit =
      !kIsPingpong && !kSwapped && kClusterSize == 1 && !kIsResident &&
      kTileM * kTileN * static_cast<int>(sizeof(float)) <= kStages * kStageBytes &&
      (!Finish::kResidual || Finish::kUnits <= Finish::kBuffers);
  static constexpr int kUnitsOfTile = kGroups * Finish::kUnits,
                       kMaxSplit = 8;  // blocks of a cluster that every GPU can place
};

// A kernel that writes y twice: as NHWC in Element and as NCHW in PlaneType.
template <class Config, class ElementType, class PlaneType, class ChainType>
struct BothShape : KernelShape<Config, ElementType, ElementType, ChainType> {
  using Epilogue = BothEpilogue<typename BothShape::Finish, PlaneType>;
  static constexpr bool kBoth = true;
  static_assert(!BothShape::kNchw && !BothShape::kSwapped, "rows of pixels are stored as they are");
};

// A kernel whose output is the mean over each image, behind the epilogue: a block of 64 rows holds
// one image.
template <class Config, class ElementType, class OutputType, class ChainType>
struct MeanShape : KernelShape<Config, ElementType, OutputType, ChainType> {
  using Epilogue = MeanEpilogue<typename MeanShape::Finish>;
  static constexpr bool kMean = true;
  static_assert(!MeanShape::kNchw && !MeanShape::kSwapped && MeanShape::kClusterN == 1,
                "images are whole blocks of rows");
};

// A kernel whose operands are codes of 8 bits. It may add offsets for the zero point of x, the same
// for all pixels or by their classes (see CodeParams).
template <class Config, class ElementType, class OutputType, class ChainType>
struct CodesShape : KernelShape<Config, ElementType, OutputType,
                                typename ChainOfCodes<OutputType, ChainType>::Type> {
  using ProductParams = CodeParams;
  using Epilogue = CodesEpilogue<typename CodesShape::Finish>;
  static constexpr int kKindOfOffsets = Config::at(Column::kInstructionN);
  static constexpr bool kCodes = true, kOffsets = kKindOfOffsets != kNoOffsets,
                        kBorder = kKindOfOffsets == kByPixel;
  static constexpr bool kPairsColumns = sizeof(OutputType) == 1;
  // Sums of e4m3 inside wgmma have 14 bits or so: each k-block's are added in fp32, apart. With two
  // sets of registers for them, one is added while the products of the other are under way.
  static constexpr int kPartialSets = Config::at(Column::kWarpK);
  static constexpr bool kPromotes = kPartialSets > 0, kTakesTurns = kPartialSets == 2;
  static_assert(kPartialSets >= 0 && kPartialSets <= 2, "partial sums have one set or two");
  static_assert(sizeof(ElementType) == 1, "codes have 8 bits");
  static_assert(!kOffsets || kBorder || kKindOfOffsets == kByColumn,
                "a configuration names a kind of offsets");
  static_assert(!kOffsets || std::is_same_v<typename CodesShape::Sum, int32_t>,
                "codes of floating point have no zero point");
  static_assert(Config::at(Column::kAlignA) == 16 && Config::at(Column::kAlignB) == 16 &&
                    Config::at(Column::kAlignC) * sizeof(OutputType) == 16,
                "TMA moves rows of 16 bytes");
  static_assert(!CodesShape::kNchw && !CodesShape::kSwapped,
                "rows of pixels are stored as they are");
  static_assert(!kPromotes || std::is_same_v<typename CodesShape::Sum, float>,
                "sums of integers are exact");
  static_assert(!kPairsColumns || CodesShape::kTileN / CodesShape::kClusterM % kPairedColumns == 0,
                "columns are paired in whole groups");
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
