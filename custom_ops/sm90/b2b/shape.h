// Back-to-back GEMMs: the constants of a kernel, and the parameters of a launch.
#pragma once
#include "b2b/layers.h"
#include "runtime/integers.h"
#include "sm90/shape.h"

namespace onnxbolt {
namespace sm90 {

struct ChainParams {
  CUtensorMap a, weights[kMaxLayers], d, residual;
  int rows, tiles, columns[kMaxLayers];  // the tensors' columns, without the kernel's zeros
  bool stores_by_tma;  // rows of the output, and of a residual, are multiples of 16 bytes
  void* d_data;        // the output, if they are not
  int64_t ldd;
  const void* a_data;  // A, if TMA does not read its rows
  int k;
  int64_t lda;
  EpilogueArguments operands[kMaxLayers];
};

// One thread.
template <class K>
__device__ void PrefetchMaps(const ChainParams& params) {
  if constexpr (K::kRowsByTma) Prefetch(params.a);
  for (int i = 0; i < K::kLayers; ++i) Prefetch(params.weights[i]);
  if (!params.stores_by_tma) return;
  Prefetch(params.d);
  if constexpr (K::Finish::kResidual) Prefetch(params.residual);
}

// Columns and depths are multiples of 16, zeros included. Resident: all weights stay in shared
// memory, and each consumer warpgroup has tiles of 64 rows and a ring of its own. Otherwise the
// first layer's weights come through the ring with the rows, and the warpgroups share tiles.
template <class Config, class ElementType, class OutputType, class... Chains>
struct ChainShape : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Layers::columns, Layers::depth, Layers::kLast, Layers::kLayers, Layers::vectors;

  static constexpr int kGroups = Row::at(kConsumers), kStages = Row::at(Column::kStages),
                       kThreads = 128 * (kGroups + 1);
  static constexpr bool kIsResident = Row::at(kResident) == 1, kRowsByTma = Row::at(kAlignA) == 8;
  static constexpr int kRowThreads = 128;  // if TMA does not read the rows: the producer warpgroup

  static constexpr int block(int layer) { return columns(layer); }  // columns of one product

  // Operands lie in boxes along k; a row of a box is one swizzled row.
  static constexpr int box(int layer) { return BoxColumns<Element>(depth(layer)); }
  static constexpr int row_bytes(int layer) {
    return box(layer) * static_cast<int>(sizeof(Element));
  }
  static constexpr int boxes(int layer) { return depth(layer) / box(layer); }
  static constexpr int box_bytes(int layer) {
    return columns(layer) * row_bytes(layer);
  }  // bytes of a box of weights

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kGroups >= 1 && kGroups <= 4);
  static_assert(sizeof(Element) == 2, "accumulators lie as operands of 16 bits");
  static_assert(Layers::is_whole(16), "one instruction takes 16 values along k");

  // Rings of rows: one for all consumer warpgroups, or one for each.
  static constexpr int kRings = kIsResident ? kGroups : 1, kGroupsOfRing = kGroups / kRings,
                       kStageRows = 64 * kGroupsOfRing;
  static constexpr int kRowPitch = row_bytes(0) + (kRowsByTma ? 0 : 16);  // sm90/b2b/rows.h
  static constexpr int kRowsBytes = kStageRows * kRowPitch,
                       kStageBytes = kRowsBytes + (kIsResident ? 0 : box_bytes(0));
  static constexpr int kLoadBytes =
      kStageBytes - (kRowsByTma ? 0 : kRowsBytes);  // bytes of a stage that come by TMA
  static_assert(Row::at(kTileM) == kStageRows);

  // Shared memory: resident weights, rings, staging of the output, vectors, barriers.
  static constexpr int resident_bytes(int layer) {
    return layer == 0 && !kIsResident ? 0 : RoundUp(boxes(layer) * box_bytes(layer), 1024);
  }
  static constexpr int weight_offset(int layer) {
    return layer == 0 ? 0 : weight_offset(layer - 1) + resident_bytes(layer - 1);
  }
  static constexpr int vector_offset(int layer) {  // in floats
    return layer == 0 ? 0 : vector_offset(layer - 1) + vectors(layer - 1) * columns(layer - 1);
  }
  using Finish = EpilogueShape<Element, Output, typename Layers::template ChainOf<kLast>, 1,
                               columns(kLast), kRowsByTma>;
  static constexpr int kOffsetRings = weight_offset(kLayers);
  static constexpr int kOffsetStaging =
      kOffsetRings + kRings * kStages * RoundUp(kStageBytes, 1024);
  static constexpr int kOffsetVectors =
      kOffsetStaging + kGroups * RoundUp(Finish::kStagingBytes, 1024);
  static constexpr int kOffsetBarriers =
      RoundUp(kOffsetVectors + vector_offset(kLayers) * static_cast<int>(sizeof(float)), 16);
  struct Barriers {
    Barrier weights[kLayers], full[kRings][kStages], empty[kRings][kStages];
    Barrier residual_loaded[kGroups][Finish::kBuffers], residual_free[kGroups][Finish::kBuffers];
  };
  static constexpr int kSharedMemory = kOffsetBarriers + sizeof(Barriers);
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");
};

// The block's shared memory.
template <class K>
struct ChainMemory {
  char* base;

  template <int L>
  __device__ char* weights() const {
    constexpr int kOffset = K::weight_offset(L);
    return base + kOffset;
  }
  template <int L>
  __device__ float* vectors() const {
    constexpr int kOffset = K::kOffsetVectors + K::vector_offset(L) * sizeof(float);
    return reinterpret_cast<float*>(base + kOffset);
  }
  __device__ char* stage(int ring, int stage) const {
    constexpr int kBytes = (K::kOffsetStaging - K::kOffsetRings) / (K::kRings * K::kStages);
    return base + K::kOffsetRings + (ring * K::kStages + stage) * kBytes;
  }
  __device__ typename K::Barriers& barriers() const {
    return *reinterpret_cast<typename K::Barriers*>(base + K::kOffsetBarriers);
  }
  __device__ EpilogueMemory<typename K::Finish> epilogue(int group) const {
    constexpr int kBytes = (K::kOffsetVectors - K::kOffsetStaging) / K::kGroups;
    return {base + K::kOffsetStaging + group * kBytes, vectors<K::kLast>(),
            barriers().residual_loaded[group], barriers().residual_free[group]};
  }
};

// The tiles of a ring. The blocks' first rings have the first tiles, so that few tiles are spread
// over as many SMs.
template <class K>
struct ChainTiles {
  int first, step;

  __device__ explicit ChainTiles(int ring)
      : first(ring * gridDim.x + blockIdx.x), step(K::kRings * gridDim.x) {}
};

}  // namespace sm90
}  // namespace onnxbolt
