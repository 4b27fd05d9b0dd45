// Two products of which the first one's result is stored as well, or has residuals, or both: the
// static facts of one kernel, and what a launch tells all its blocks.
//
// A warpgroup takes the first result of its 64 rows 64 columns at a time. Such a block is
// multiplied, finished, stored where others read it, and is the second product's operand for as
// many values along its k, so that the first layer may be as wide as it likes. Its weights are a
// stage of a ring that all warpgroups share: these columns of the first layer, and these values
// along k of the second.
#pragma once
#include <algorithm>

#include "runtime/integers.h"
#include "runtime/kernel.h"
#include "sm90/shape.h"

namespace onnxbolt {
namespace sm90 {

struct StoredParams {
  CUtensorMap rows, weights[2], residual, stored, d;
  int row_count, columns[2];  // as they are, without zeros
  int rounds;                 // in each of which a warpgroup has one tile
  EpilogueArguments operands[2];
};

// An epilogue's shape with a number of buffers of one's own, and whether its result is stored.
template <class Shape, int Buffers, bool Stores = true>
struct WithBuffers : Shape {
  static constexpr int kBuffers = Buffers, kStagingBytes = Buffers * Shape::kUnitBytes;
  static constexpr bool kStores = Stores;
};

// Columns of the configuration: threadblock = (rows of all warpgroups, the first layer's columns,
// k), warp[0] = the second layer's columns, zeros included; stages = those of the weights' ring,
// unless all blocks are resident. `Stores`: whether the first result is an output, too.
template <class Config, class ElementType, class OutputType, bool Stores, class First, class Last>
struct StoredShape {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static constexpr int kGroups = Row::at(kConsumers), kThreads = 128 * (kGroups + 1), kRows = 64;
  static constexpr int kDepth = Row::at(kTileK), kInner = Row::at(kTileN),
                       kColumns = Row::at(kWarpM);
  static constexpr int kBlockColumns = 64, kBlocks = kInner / kBlockColumns;
  static constexpr bool kIsResident = Row::at(kResident) == 1;

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kGroups >= 1 && kGroups <= 3 && Row::at(kTileM) == kGroups * kRows);
  static_assert(sizeof(Element) == 2, "accumulators lie as operands of 16 bits");
  static_assert(kDepth % 16 == 0 && kInner % kBlockColumns == 0 && kColumns % 16 == 0,
                "zeros fill what is narrower");
  static_assert(Last::kTensors == 0, "tensors are the first layer's");
  static_assert(Stores || First::kTensors > 0,
                "other kernels are for what is neither stored nor has residuals");
  static_assert(First::kParams + Last::kParams <= kMaxParams,
                "both layers together have at most kMaxParams parameters");

  // Rows and the first layer's weights lie in boxes of one swizzled row along k each; both have 64
  // of them.
  static constexpr int kBox = BoxColumns<Element>(kDepth), kBoxes = kDepth / kBox,
                       kBoxBytes = kRows * kBox * sizeof(Element);
  static constexpr int kRowsBytes = kBoxes * kBoxBytes;
  static constexpr int kNextRowBytes =
      kBlockColumns * sizeof(Element);  // bytes of a row of the second layer's weights
  static constexpr int kWeightBytes = kRowsBytes + kColumns * kNextRowBytes;
  static constexpr int kWeightStages = kIsResident ? kBlocks : Row::at(Column::kStages);

  // Shared memory: weights, and for each warpgroup tiles of rows, units of both results, and
  // vectors; barriers. Two tiles, where that leaves room for two units of the first; then as many
  // units as there is room for, since residuals are loaded that far ahead.
  using PlainStore = EpilogueShape<Element, Element, First, 1, kInner>;
  using Finish = WithBuffers<EpilogueShape<Element, Output, Last, 1, kColumns, false>, 1>;
  static constexpr int kVectorBytes = PlainStore::kVectorBytes + Finish::kVectorBytes;
  static constexpr int kGroupBytes =
      (ArchOf<Row>::kSharedMemory - 1024 - kWeightStages * kWeightBytes) / kGroups - kVectorBytes -
      Finish::kStagingBytes;
  static constexpr int kStages = kGroupBytes >= 2 * kRowsBytes + 2 * PlainStore::kUnitBytes ? 2 : 1;
  static constexpr int kUnits = (kGroupBytes - kStages * kRowsBytes) / PlainStore::kUnitBytes;
  static_assert(kWeightStages >= 1 && kUnits >= 2, "weights and tiles do not fit shared memory");
  using Store = WithBuffers<PlainStore, std::min(kUnits, PlainStore::kResidual ? 4 : 2), Stores>;
  static_assert(Store::kUnitColumns == kBlockColumns, "a block is a unit of the first result");

  static constexpr int kOffsetRows = kWeightStages * kWeightBytes;
  static constexpr int kOffsetStore = kOffsetRows + kGroups * kStages * kRowsBytes;
  static constexpr int kOffsetFinish = kOffsetStore + kGroups * Store::kStagingBytes;
  static constexpr int kOffsetVectors = kOffsetFinish + kGroups * Finish::kStagingBytes;
  static constexpr int kOffsetBarriers = kOffsetVectors + kGroups * kVectorBytes;

  struct Barriers {
    Barrier weights_full[kWeightStages], weights_empty[kWeightStages];
    Barrier rows_full[kGroups][kStages], rows_empty[kGroups][kStages];
    Barrier residual_loaded[kGroups][Store::kBuffers], residual_free[kGroups][Store::kBuffers];
  };
  static constexpr int kSharedMemory = kOffsetBarriers + sizeof(Barriers);
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");
};

// The block's shared memory.
template <class K>
struct StoredMemory {
  char* base;

  __device__ char* weights(int stage) const { return base + stage * K::kWeightBytes; }
  __device__ char* next_weights(int stage) const { return weights(stage) + K::kRowsBytes; }
  __device__ char* rows(int group, int stage) const {
    return base + K::kOffsetRows + (group * K::kStages + stage) * K::kRowsBytes;
  }
  __device__ typename K::Barriers& barriers() const {
    return *reinterpret_cast<typename K::Barriers*>(base + K::kOffsetBarriers);
  }

  __device__ EpilogueMemory<typename K::Store> store(int group) const {
    return {base + K::kOffsetStore + group * K::Store::kStagingBytes, vectors(group),
            barriers().residual_loaded[group], barriers().residual_free[group]};
  }
  __device__ EpilogueMemory<typename K::Finish> finish(int group) const {
    constexpr int kOfStore = K::Store::kVectorBytes / sizeof(float);
    return {base + K::kOffsetFinish + group * K::Finish::kStagingBytes, vectors(group) + kOfStore,
            nullptr, nullptr};
  }

 private:
  __device__ float* vectors(int group) const {
    return reinterpret_cast<float*>(base + K::kOffsetVectors + group * K::kVectorBytes);
  }
};

// The first row of a warpgroup's tile. Few tiles meet as many SMs as there are.
template <class K>
__device__ int FirstRow(int round, int group) {
  return ((round * K::kGroups + group) * gridDim.x + blockIdx.x) * K::kRows;
}

}  // namespace sm90
}  // namespace onnxbolt
