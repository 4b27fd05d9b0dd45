// A convolution and 1x1 convolutions behind it: the static facts of one kernel, and what a launch tells all its blocks.
#pragma once
#include <tuple>

#include "chain/layers.h"
#include "chain/next_product.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

// What the layers behind the first need of shared memory: weights, each layer's in boxes of one swizzled row each, then the vectors of
// all layers but the last, then a barrier.
template <class Config, class Element, class... Chains>
struct InnerLayers : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;

  static constexpr int box(int layer) { return BoxColumns<Element>(Layers::columns(layer - 1)); }
  static constexpr int boxes(int layer) { return Layers::columns(layer - 1) / box(layer); }
  static constexpr int box_bytes(int layer) { return Layers::columns(layer) * box(layer) * static_cast<int>(sizeof(Element)); }
  static constexpr int weight_offset(int layer) {
    return layer == 1 ? 0 : weight_offset(layer - 1) + RoundUp(boxes(layer - 1) * box_bytes(layer - 1), 1024);
  }
  static constexpr int vector_offset(int layer) {
    constexpr int kSize = sizeof(float);
    return layer == 0 ? weight_offset(Layers::kLayers)
                      : vector_offset(layer - 1) + Layers::vectors(layer - 1) * Layers::columns(layer - 1) * kSize;
  }
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
    : KernelShape<Config, ElementType, OutputType, std::tuple_element_t<sizeof...(Chains) - 1, std::tuple<Chains...>>,
                  ChainLayers<Config, Chains...>::columns(sizeof...(Chains) - 1), InnerLayers<Config, ElementType, Chains...>::kBytes> {
  using Layers = InnerLayers<Config, ElementType, Chains...>;
  static constexpr bool kCanSplit = false;
  // The last product's columns go to registers a part at a time.
  static constexpr int kLastColumns = Layers::columns(Layers::kLast);
  static constexpr int kPart = kLastColumns <= 128 ? kLastColumns : kLastColumns % 128 == 0 ? 128 : 64;

  static_assert(kLastColumns % kPart == 0, "the last product has whole parts");
  static_assert(sizeof(ElementType) == 2, "accumulators lie as operands of 16 bits");
  static_assert(Config::at(kClusterM) == 1 && Config::at(kClusterN) == 1, "a block has all channels of its pixels");
};

struct ConvChainParams : Params {
  CUtensorMap weights[kMaxLayers];  // of the layers behind the first
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
  __device__ Barrier& loaded() const { return *reinterpret_cast<Barrier*>(base + K::Layers::kBarrierOffset); }
};

// Zeros beyond a layer's channels. All threads, before the kernel before ends: vectors are constants.
template <class K, int L = 0>
__device__ void LoadInnerVectors(const ConvChainParams& params, InnerMemory<K> memory) {
  if constexpr (L < K::Layers::kLast) {
    constexpr int kColumns = K::Layers::columns(L), kValues = K::Layers::vectors(L) * kColumns;
    for (int i = threadIdx.x; i < kValues; i += K::kThreads) {
      const int column = i % kColumns;
      memory.template vectors<L>()[i] = column < params.channels[L] ? params.inner[L].vectors[i / kColumns][column] : 0.f;
    }
    LoadInnerVectors<K, L + 1>(params, memory);
  }
}

// All weights behind the first layer's. One thread.
template <class K, int L = 1>
__device__ void LoadInnerWeights(const ConvChainParams& params, InnerMemory<K> memory) {
  if constexpr (L == 1) memory.loaded().arrive_and_expect(K::Layers::weight_bytes());
  if constexpr (L <= K::Layers::kLast) {
    constexpr int kBoxes = K::Layers::boxes(L), kBox = K::Layers::box(L), kBytes = K::Layers::box_bytes(L);
    for (int i = 0; i < kBoxes; ++i)
      Load2D(params.weights[L], memory.loaded(), memory.template weights<L>() + i * kBytes, i * kBox, 0, Cache::kEvictLast);
    LoadInnerWeights<K, L + 1>(params, memory);
  }
}

// What becomes of a tile's sums: 64 rows at a time they go through the other layers, in registers (see TileEnd).
template <class K>
class ChainEnd {
 public:
  using Params = ConvChainParams;
  using Element = typename K::Element;
  using Finish = typename K::Finish;
  using Layers = typename K::Layers;
  static constexpr int kBlocksApart = 0;  // nothing is finished before all products are

  CUTLASS_DEVICE ChainEnd(const Params& params, SharedMemory<K> memory, int group, int)
      : params_(params), memory_(memory), epilogue_(memory.epilogue(group), params.operands, 1 + group) {}

  CUTLASS_DEVICE void fetch(int column) { epilogue_.fetch_vectors(column, params_.columns); }
  CUTLASS_DEVICE void keep() { epilogue_.keep_vectors(); }
  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

  CUTLASS_DEVICE void finish(Accumulators<K::kTileN> (&sums)[K::kBlocks], const MatrixOutput& to) {
    memory_.loaded().wait(0);
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) continue_from<0>(sums[m], 64 * m, to);
  }

 private:
  template <int L>
  CUTLASS_DEVICE void continue_from(const Accumulators<Layers::columns(L)>& sums, int row, const MatrixOutput& to) {
    constexpr int kColumns = Layers::columns(L), kNext = Layers::columns(L + 1);
    Operand<kColumns> operand;
    FinishAsOperand<typename Layers::template ChainOf<L>, Element, kColumns>(sums, memory_.template vectors<L>(), params_.inner[L].params,
                                                                             operand);
    if constexpr (L + 1 == Layers::kLast) {
      finish_last(operand, row, to);
    } else {
      Accumulators<kNext> next;
      MultiplyOperand<Element, kColumns, kNext>(operand, memory_.template weights<L + 1>(), Layers::box_bytes(L + 1), next);
      continue_from<L + 1>(next, row, to);
    }
  }

  CUTLASS_DEVICE void finish_last(Operand<Layers::columns(Layers::kLast - 1)>& operand, int row, const MatrixOutput& to) {
    constexpr int kDepth = Layers::columns(Layers::kLast - 1), kRowBytes = Layers::box(Layers::kLast) * sizeof(Element);
    constexpr int kUnit = Finish::kUnitColumns;
#pragma unroll
    for (int column = 0; column < K::kLastColumns; column += K::kPart) {
      Accumulators<K::kPart> sums;
      MultiplyOperand<Element, kDepth, K::kPart>(operand, memory_.template weights<Layers::kLast>() + column * kRowBytes,
                                                 Layers::box_bytes(Layers::kLast), sums);
#pragma unroll
      for (int i = 0; i < K::kPart; i += kUnit)
        epilogue_.finish_unit(reinterpret_cast<const float(&)[kUnit / 2]>(sums[i / 2]), row, column + i, params_.columns, to);
    }
  }

  const Params& params_;
  InnerMemory<K> memory_;
  Epilogue<Finish> epilogue_;
};

}  // namespace sm90
}  // namespace onnxbolt
