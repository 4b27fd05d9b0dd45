// Back-to-back GEMMs whose layers have up to 512 columns: the static facts of one kernel. What lies
// between its layers is in swizzled shared memory.
#pragma once
#include "b2b/layers.h"
#include "sm90/b2b/shape.h"
#include "runtime/integers.h"

namespace onnxbolt {
namespace sm90 {

// A box of activations: 64 rows of 64 columns, swizzled as TMA does.
constexpr int kActivationColumns = 64, kActivationRowBytes = 128,
              kActivationBoxBytes = 64 * kActivationRowBytes;

// A tile has 64 or 128 rows. Of 64, the warpgroups share the columns of each layer, in equal
// blocks; of 128, each has 64 rows by itself. A product computes a block of columns, at most 256:
// where a warpgroup has more of the first layer, it computes them in two passes, for which the rows
// come twice. Later layers have one pass, so that each takes the place of what it reads.
template <class Config, class ElementType, class OutputType, class... Chains>
struct WideShape : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Layers::columns, Layers::depth, Layers::kLast, Layers::kLayers, Layers::vectors;

  static constexpr int kGroups = Row::at(kConsumers), kStages = Row::at(Column::kStages),
                       kThreads = 128 * (kGroups + 1);
  static constexpr bool kRowsByTma = Row::at(kAlignA) == 8;
  static constexpr int kStageRows = Row::at(kTileM), kRowGroups = kStageRows / 64;
  static constexpr int kShares = kGroups / kRowGroups;  // warpgroups that have the same rows

  // Columns of one product, and how many of them a warpgroup computes.
  static constexpr int kMaxBlock = 256;
  static constexpr int block(int layer) {
    const int share = columns(layer) / kShares;
    return share > kMaxBlock ? share / 2 : share;
  }
  static constexpr int passes(int layer) { return columns(layer) / (block(layer) * kShares); }

  static constexpr bool is_feasible(int layer = 0) {
    return layer == kLayers || (columns(layer) % (16 * kShares) == 0 && block(layer) <= kMaxBlock &&
                                (layer == 0 || passes(layer) == 1) && is_feasible(layer + 1));
  }
  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kGroups == 2 && (kStageRows == 64 || kStageRows == 128));
  static_assert(sizeof(Element) == 2, "activations are rows of 64 columns of 16 bits");
  static_assert(Layers::is_whole(16) && is_feasible());

  // Along k, weights and rows come in boxes of one swizzled row each; all weights of a pass and of
  // a box are a stage.
  static constexpr int kMaxWeightBytes = 32768 / kRowGroups;
  static constexpr int box(int layer) {
    for (int box : {64, 32}) {
      if (depth(layer) % box == 0 &&
          kShares * block(layer) * box * int(sizeof(Element)) <= kMaxWeightBytes)
        return box;
    }
    return 16;
  }
  static constexpr int row_bytes(int layer) {
    return box(layer) * static_cast<int>(sizeof(Element));
  }
  static constexpr int boxes(int layer) { return depth(layer) / box(layer); }
  static constexpr int box_bytes(int layer) {
    return block(layer) * row_bytes(layer);
  }  // one block's weights
  static constexpr int stage_bytes(int layer) {
    return layer == kLayers ? 0 : std::max(kShares * box_bytes(layer), stage_bytes(layer + 1));
  }
  static constexpr int kStageBytes = RoundUp(stage_bytes(0), 1024);

  // Rows have a ring of their own, so that weights need not wait for the kernel before.
  static constexpr int kRowThreads =
      96;  // if TMA does not read the rows: all but the warp whose thread loads weights
  static constexpr int kRowPitch = row_bytes(0) + (kRowsByTma ? 0 : 16);  // sm90/b2b/rows.h
  static constexpr int kRowsBytes = RoundUp(kStageRows * kRowPitch, 1024);

  // 64 rows of an inner layer's columns, where afterwards the last layer's are staged.
  using Finish = EpilogueShape<Element, Output, typename Layers::template ChainOf<kLast>, 1,
                               block(kLast), false>;
  static constexpr int most_columns(int layer = 0) {
    return layer == kLast ? 0 : std::max(columns(layer), most_columns(layer + 1));
  }
  static constexpr int kStagingBytes = RoundUp(Finish::kStagingBytes, 1024);
  static constexpr int kActivationBytes = std::max(
      CeilDivide(most_columns(), kActivationColumns) * kActivationBoxBytes, kShares* kStagingBytes);

  // Shared memory: weights, activations, vectors of all layers, barriers; rows have what is left,
  // since few of them are long on their way.
  static constexpr int kOffsetActivations = kStages * kStageBytes;
  static constexpr int kOffsetRows = kOffsetActivations + kRowGroups * kActivationBytes;
  static constexpr int vector_offset(int layer) {  // in floats
    return layer == 0 ? 0 : vector_offset(layer - 1) + vectors(layer - 1) * columns(layer - 1);
  }
  static constexpr int kVectorBytes =
      RoundUp(vector_offset(kLayers) * static_cast<int>(sizeof(float)), 16);
  static constexpr int kMaxRowStages = 8, kMinRowStages = 2;
  static constexpr int kBarrierBytes =
      2 * (kStages + kMaxRowStages) * static_cast<int>(sizeof(Barrier));
  static constexpr int kRowStages = std::min(
      kMaxRowStages,
      (ArchOf<Row>::kSharedMemory - kOffsetRows - kVectorBytes - kBarrierBytes) / kRowsBytes);
  static constexpr int kOffsetVectors = kOffsetRows + kRowStages * kRowsBytes,
                       kOffsetBarriers = kOffsetVectors + kVectorBytes;
  struct Barriers {
    Barrier full[kStages], empty[kStages], rows_full[kRowStages], rows_empty[kRowStages];
  };
  static constexpr int kSharedMemory = kOffsetBarriers + sizeof(Barriers);
  static_assert(kRowStages >= kMinRowStages && kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");
};

// The block's shared memory.
template <class K>
struct WideMemory {
  char* base;

  __device__ char* weights(int stage) const { return base + stage * K::kStageBytes; }
  __device__ char* rows(int stage) const { return base + K::kOffsetRows + stage * K::kRowsBytes; }
  __device__ char* activations(int row_group) const {
    return base + K::kOffsetActivations + row_group * K::kActivationBytes;
  }
  template <int L>
  __device__ float* vectors() const {
    return reinterpret_cast<float*>(base + K::kOffsetVectors) + K::vector_offset(L);
  }
  __device__ typename K::Barriers& barriers() const {
    return *reinterpret_cast<typename K::Barriers*>(base + K::kOffsetBarriers);
  }

  // The memory of the last epilogue, for a warpgroup with a share of 64 rows. Activations have been
  // read by then.
  __device__ EpilogueMemory<typename K::Finish> epilogue(int row_group, int share) const {
    return {activations(row_group) + share * K::kStagingBytes,
            vectors<K::kLast>() + share * K::vectors(K::kLast) * K::block(K::kLast), nullptr,
            nullptr};
  }
};

}  // namespace sm90
}  // namespace onnxbolt
