// A convolution and 1x1 convolutions behind it: the static facts of one kernel, and what a launch
// tells all its blocks.
#pragma once
#include <tuple>

#include "b2b/layers.h"
#include "sm90/b2b/next_product.h"
#include "sm90/b2b/vectors.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

// The shared memory of the layers behind the first: weights, each layer's in boxes whose rows are
// one swizzled row, then the vectors of all layers but the last, then a barrier.
//
// If the first layer's weights come through the ring, so do these, behind a tile's k-blocks:
// weights that stay in shared memory leave the ring less, and it gets too short to hide the
// memory's latency (192 channels at 14x14: 11.4 us, now 10.4). Boxes too large for a stage stay.
template <class Config, class Element, class... Chains>
struct InnerLayers : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;

  static constexpr int box(int layer) { return BoxColumns<Element>(Layers::columns(layer - 1)); }
  static constexpr int boxes(int layer) { return Layers::columns(layer - 1) / box(layer); }
  static constexpr int box_bytes(int layer) {
    return Layers::columns(layer) * box(layer) * static_cast<int>(sizeof(Element));
  }
  static constexpr int kStageBytes =
      Layers::columns(0) * Layers::kDepth *
      static_cast<int>(sizeof(Element));  // weights in a stage of the ring
  static constexpr int boxes_of_stage(int layer) {
    return std::max(kStageBytes / box_bytes(layer), 1);
  }
  static constexpr bool fit_stages(int layer = 1) {
    return layer == Layers::kLayers || (box_bytes(layer) <= kStageBytes && fit_stages(layer + 1));
  }
  static constexpr bool kPass = Config::at(kResident) == 0 && fit_stages();
  // The first of the stages behind a tile's that a layer's boxes pass through.
  static constexpr int first_stage(int layer) {
    return layer == 1 || !kPass
               ? 0
               : first_stage(layer - 1) + CeilDivide(boxes(layer - 1), boxes_of_stage(layer - 1));
  }
  static constexpr int weight_offset(int layer) {
    return layer == 1 || kPass
               ? 0
               : weight_offset(layer - 1) + RoundUp(boxes(layer - 1) * box_bytes(layer - 1), 1024);
  }
  static constexpr int vector_offset(int layer) {
    constexpr int kSize = sizeof(float);
    return layer == 0 ? weight_offset(Layers::kLayers)
                      : vector_offset(layer - 1) +
                            Layers::vectors(layer - 1) * Layers::columns(layer - 1) * kSize;
  }
  static constexpr int kStagesBehind = first_stage(Layers::kLayers);
  static constexpr int weight_bytes(int layer = Layers::kLast) {
    return layer == 0 ? 0 : boxes(layer) * box_bytes(layer) + weight_bytes(layer - 1);
  }
  static constexpr int kBarrierOffset = RoundUp(vector_offset(Layers::kLast), 8);
  static constexpr int kBytes = RoundUp(kBarrierOffset + static_cast<int>(sizeof(Barrier)), 1024);

  static_assert(Layers::is_whole(16), "one instruction takes 16 values along k");
};

// The kernel's shape is that of the first convolution, whose tiles have all of its channels.
template <class Config, class ElementType, class OutputType, class... Chains>
struct ConvChainShape
    : KernelShape<Config, ElementType, OutputType,
                  std::tuple_element_t<sizeof...(Chains) - 1, std::tuple<Chains...>>,
                  ChainLayers<Config, Chains...>::columns(sizeof...(Chains) - 1),
                  InnerLayers<Config, ElementType, Chains...>::kBytes> {
  using Layers = InnerLayers<Config, ElementType, Chains...>;
  static constexpr bool kCanSplit = false;
  // The last product's columns go to registers a part at a time.
  static constexpr int kLastColumns = Layers::columns(Layers::kLast);
  static constexpr int kPart = kLastColumns % 64 == 0 ? 64 : kLastColumns,
                       kParts = kLastColumns / kPart;
  // One is finished under the products of the next, where registers are left beside the operand.
  static constexpr bool kOverlapsParts =
      Layers::columns(Layers::kLast - 1) <= (ConvChainShape::kGroups == 1 ? 192 : 128);

  static_assert(kLastColumns % kPart == 0, "the last product has whole parts");
  static_assert(!ConvChainShape::kNchw && !ConvChainShape::kSwapped,
                "ChainEnd has rows of pixels, and stages them");
  static_assert(Layers::kStagesBehind < ConvChainShape::kStages,
                "a tile's last k-block and what is behind it are in the ring together");
  static_assert(sizeof(ElementType) == 2, "accumulators lie as operands of 16 bits");
  static_assert(Config::at(kClusterM) == 1 && Config::at(kClusterN) == 1,
                "a block has all channels of its pixels");
};

struct ConvChainParams : Params {
  CUtensorMap weights[kMaxLayers];  // the weights of the layers behind the first
  int channels[kMaxLayers];         // as they are, without the kernel's zeros
  EpilogueArguments inner[kMaxLayers];
};

// The layers' part of a block's shared memory.
template <class K>
struct InnerMemory {
  char* base;

  __device__ explicit InnerMemory(SharedMemory<K> memory) : base(memory.base + K::kOffsetExtra) {}

  template <int L>
  __device__ char* weights() const {
    constexpr int kOffset = K::Layers::weight_offset(L);
    return base + kOffset;
  }
  template <int L>
  __device__ float* vectors() const {
    constexpr int kOffset = K::Layers::vector_offset(L);
    return reinterpret_cast<float*>(base + kOffset);
  }
  __device__ Barrier& loaded() const {
    return *reinterpret_cast<Barrier*>(base + K::Layers::kBarrierOffset);
  }
};

// All consumers, who meet afterwards; before the kernel before ends: vectors are constants.
template <class K, int L = 0>
__device__ void LoadInnerVectors(const ConvChainParams& params, InnerMemory<K> memory) {
  if constexpr (L < K::Layers::kLast) {
    constexpr int kColumns = K::Layers::columns(L);
    const LayerVectors<K::Layers::vectors(L), kColumns, kColumns, 128 * K::kGroups> layer(
        params.inner[L], params.channels[L], threadIdx.x - 128);
    LoadInnerVectors<K, L + 1>(params, memory);
    layer.keep(memory.template vectors<L>());
  }
}

// All weights behind the first layer's. One thread.
template <class K, int L = 1>
__device__ void LoadInnerWeights(const ConvChainParams& params, InnerMemory<K> memory) {
  if constexpr (L == 1) memory.loaded().arrive_and_expect(K::Layers::weight_bytes());
  if constexpr (L <= K::Layers::kLast) {
    constexpr int kBoxes = K::Layers::boxes(L), kBox = K::Layers::box(L),
                  kBytes = K::Layers::box_bytes(L);
    for (int i = 0; i < kBoxes; ++i)
      Load2D(params.weights[L], memory.loaded(), memory.template weights<L>() + i * kBytes,
             i * kBox, 0, Cache::kEvictLast);
    LoadInnerWeights<K, L + 1>(params, memory);
  }
}

// The same where they pass through the ring: what comes into stage `i` behind a tile's k-blocks.
// One thread.
template <class K>
struct WeightsBehind {
  using Params = ConvChainParams;
  using Layers = typename K::Layers;
  static constexpr int kStages = Layers::kStagesBehind;

  __device__ static void load(const Params& params, Barrier& full, char* stage, int i) {
    load_from<1>(params, full, stage, i);
  }

 private:
  template <int L>
  __device__ static void load_from(const Params& params, Barrier& full, char* stage, int i) {
    if constexpr (L <= Layers::kLast) {
      if (i >= Layers::first_stage(L + 1)) return load_from<L + 1>(params, full, stage, i);
      constexpr int kCount = Layers::boxes_of_stage(L), kBytes = Layers::box_bytes(L);
      const int first = (i - Layers::first_stage(L)) * kCount,
                count = min(kCount, Layers::boxes(L) - first);
      full.arrive_and_expect(count * kBytes);
      for (int box = 0; box < count; ++box)
        Load2D(params.weights[L], full, stage + box * kBytes, (first + box) * Layers::box(L), 0,
               Cache::kEvictLast);
    }
  }
};

// Finishes a tile: its accumulators go through the other layers, 64 rows at a time, in registers
// (see TileEnd).
template <class K>
class ChainEnd {
 public:
  using Params = ConvChainParams;
  using Element = typename K::Element;
  using Finish = typename K::Finish;
  using Layers = typename K::Layers;
  static constexpr int kBlocksApart = 0;  // nothing is finished before all products are
  static constexpr int kStagesBehind = Layers::kStagesBehind;

  CUTLASS_DEVICE ChainEnd(const Params& params, SharedMemory<K> memory, int group, int)
      : params_(params),
        memory_(memory),
        inner_(memory),
        epilogue_(memory.epilogue(group), params.operands, 1 + group) {}

  CUTLASS_DEVICE void fetch(Origin tile) { epilogue_.fetch_vectors(tile.column, params_.columns); }
  CUTLASS_DEVICE void keep() { epilogue_.keep_vectors(); }
  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

  // `behind`: the first of the stages that the weights pass through, all of which are there.
  CUTLASS_DEVICE void weights_at(const RingCursor<K::kStages>& behind) { behind_ = behind; }

  CUTLASS_DEVICE void finish(Accumulators<K::kTileN> (&sums)[K::kBlocks], const MatrixOutput& to) {
    if constexpr (!Layers::kPass) inner_.loaded().wait(0);
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) continue_from<0>(sums[m], 64 * m, to);
  }

 private:
  template <int L>
  CUTLASS_DEVICE void continue_from(const Accumulators<Layers::columns(L)>& sums, int row,
                                    const MatrixOutput& to) {
    constexpr int kColumns = Layers::columns(L), kNext = Layers::columns(L + 1);
    Operand<kColumns> operand;
    FinishAsOperand<typename Layers::template ChainOf<L>, Element, kColumns>(
        sums, inner_.template vectors<L>(), params_.inner[L].params, operand);
    PinOperand(operand);
    if constexpr (L + 1 == Layers::kLast) {
      finish_parts<0>(operand, row, to);
    } else {
      Accumulators<kNext> next;
      BeginOperandProducts<Element, kColumns, kNext>(
          operand, [&](int i) { return weights<L + 1>(i); }, next);
      WaitForProducts<0>();
      PinAccumulators(next);
      continue_from<L + 1>(next, row, to);
    }
  }

  // The last layer's columns from part P on.
  template <int P>
  CUTLASS_DEVICE void finish_parts(Operand<Layers::columns(Layers::kLast - 1)>& operand, int row,
                                   const MatrixOutput& to) {
    constexpr int kCount = P + 1 < K::kParts && K::kOverlapsParts ? 2 : 1;
    Accumulators<K::kPart> sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) begin_part(operand, (P + i) * K::kPart, sums[i]);
    if constexpr (kCount == 2) {
      WaitForProducts<1>();
      finish_part(sums[0], row, P * K::kPart, to);
    }
    WaitForProducts<0>();
    finish_part(sums[kCount - 1], row, (P + kCount - 1) * K::kPart, to);
    if constexpr (P + kCount < K::kParts) finish_parts<P + kCount>(operand, row, to);
  }

  CUTLASS_DEVICE void finish_part(Accumulators<K::kPart>& sums, int row, int column,
                                  const MatrixOutput& to) {
    constexpr int kUnit = Finish::kUnitColumns;
    PinAccumulators(sums);
#pragma unroll
    for (int i = 0; i < K::kPart; i += kUnit)
      epilogue_.finish_unit(reinterpret_cast<const float (&)[kUnit / 2]>(sums[i / 2]), row,
                            column + i, params_.columns, to);
  }

  CUTLASS_DEVICE void begin_part(Operand<Layers::columns(Layers::kLast - 1)>& operand, int column,
                                 Accumulators<K::kPart>& sums) {
    constexpr int kDepth = Layers::columns(Layers::kLast - 1),
                  kRowBytes = Layers::box(Layers::kLast) * sizeof(Element);
    BeginOperandProducts<Element, kDepth, K::kPart>(
        operand, [&](int i) { return weights<Layers::kLast>(i) + column * kRowBytes; }, sums);
  }

  // Box `i` of layer L's weights.
  template <int L>
  CUTLASS_DEVICE const char* weights(int i) const {
    constexpr int kBytes = Layers::box_bytes(L);
    if constexpr (!Layers::kPass) return inner_.template weights<L>() + i * kBytes;
    RingCursor<K::kStages> at = behind_;
    at.advance(Layers::first_stage(L) + i / Layers::boxes_of_stage(L));
    return memory_.b(at.stage) + i % Layers::boxes_of_stage(L) * kBytes;
  }

  const Params& params_;
  SharedMemory<K> memory_;
  InnerMemory<K> inner_;
  RingCursor<K::kStages> behind_;
  Epilogue<Finish> epilogue_;
};

}  // namespace sm90
}  // namespace onnxbolt
