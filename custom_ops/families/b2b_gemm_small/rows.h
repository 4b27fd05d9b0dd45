// A thread's row through all layers of a chain, and the constants that the block's threads share.
#pragma once
#include "b2b/layers.h"
#include "epilogue/chain.h"
#include "ops/gemm_chain/arguments.h"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"

namespace onnxbolt {
namespace b2b_gemm_small {

template <int Count>
using Values = cutlass::Array<float, Count>;

// The tile's rows are the block's threads. align_a and align_c: elements of an access to rows of A,
// and of D and its residuals.
template <class Config, class ElementType, class OutputType, class... Chains>
struct Shape : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Layers::columns, Layers::depth, Layers::kLast, Layers::vectors;

  static constexpr int kThreads = Row::at(kTileM);
  static constexpr int kAlignIn = Row::at(kAlignA), kAlignOut = Row::at(kAlignC);

  // In floats: a layer's weights [depth][columns], behind them its vectors [columns] one after the
  // other.
  static constexpr int layer_constants(int layer) {
    return columns(layer) * (depth(layer) + vectors(layer));
  }
  static constexpr int offset(int layer) {
    return layer == 0 ? 0 : offset(layer - 1) + layer_constants(layer - 1);
  }
  static constexpr int kConstants = offset(Layers::kLayers);

  static_assert(Layers::is_whole(4), "weights are read four at a time");
  static_assert(kConstants * sizeof(float) <= 48 << 10, "what every architecture gives a block");
};

// Zeros beyond the layers' ends. All threads of the block.
template <class K, int L = 0>
__device__ void LoadConstants(const ChainArguments& chain, float* constants) {
  if constexpr (L < K::kLayers) {
    constexpr int kColumns = K::columns(L), kDepth = K::depth(L), kVectors = K::vectors(L),
                  kOffset = K::offset(L);
    const auto* weights = static_cast<const typename K::Element*>(chain.weights[L]);
    const int columns = static_cast<int>(chain.n[L]), depth = static_cast<int>(chain.depth(L));
    const int pitch = static_cast<int>(chain.weight_pitch(L));
    float* to = constants + kOffset;
    for (int i = threadIdx.x; i < kDepth * kColumns; i += K::kThreads) {
      const int k = i / kColumns, n = i % kColumns;
      to[i] = k < depth && n < columns ? float(weights[n * pitch + k]) : 0.f;
    }
    to += kDepth * kColumns;
    for (int i = threadIdx.x; i < kVectors * kColumns; i += K::kThreads) {
      const int n = i % kColumns;
      to[i] = n < columns ? chain.epilogue[L].vectors[i / kColumns][n] : 0.f;
    }
    LoadConstants<K, L + 1>(chain, constants);
  }
}

template <class Element, int Align>
using Access = cutlass::AlignedArray<Element, Align,
                                     (Align * sizeof(Element) < 16 ? Align * sizeof(Element) : 16)>;

// `count` values from `at` on, zeros behind them.
template <class Element, int Align, int Count>
__device__ Values<Count> LoadRow(const void* data, int64_t at, int count) {
  const Element* from = static_cast<const Element*>(data) + at;
  Values<Count> values;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Count; i += Align) {
    Access<Element, Align> packed;
    packed.clear();
    if (i < count) packed = *reinterpret_cast<const Access<Element, Align>*>(from + i);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Align && i + j < Count; ++j) values[i + j] = float(packed[j]);
  }
  return values;
}

template <class Output, int Align, int Count>
__device__ void StoreRow(const cutlass::Array<Output, Count>& values, void* data, int64_t at,
                         int count) {
  Output* to = static_cast<Output*>(data) + at;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Count; i += Align) {
    Access<Output, Align> packed;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Align; ++j) packed[j] = i + j < Count ? values[i + j] : Output(0.f);
    if (i < count) *reinterpret_cast<Access<Output, Align>*>(to + i) = packed;
  }
}

template <int Depth, int Columns>
__device__ Values<Columns> Multiply(const Values<Depth>& x, const float* weights) {
  Values<Columns> sums;
  sums.clear();
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < Depth; ++k) {
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < Columns; n += 4) {
      const float4 w = *reinterpret_cast<const float4*>(weights + k * Columns + n);
      sums[n] += x[k] * w.x;
      sums[n + 1] += x[k] * w.y;
      sums[n + 2] += x[k] * w.z;
      sums[n + 3] += x[k] * w.w;
    }
  }
  return sums;
}

// Layer L and those behind it; `x` is what the layer before left of the row.
template <class K, int L, int Depth>
__device__ void ComputeFrom(const ChainArguments& chain, const float* constants, int64_t row,
                            const Values<Depth>& x) {
  using Chain = typename K::template ChainOf<L>;
  using Element = typename K::Element;
  constexpr int kColumns = K::columns(L), kOffset = K::offset(L);
  const float* vectors = constants + kOffset + Depth * kColumns;
  typename Chain::template Operands<kColumns> operands;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < Chain::kVectors; ++v) {
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < kColumns; ++n) operands.vectors[v][n] = vectors[v * kColumns + n];
  }
  const EpilogueArguments& epilogue = chain.epilogue[L];
  const int columns = static_cast<int>(chain.n[L]);
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < Chain::kTensors; ++t)
    operands.tensors[t] = LoadRow<Element, K::kAlignOut, kColumns>(
        epilogue.tensors[t], row * epilogue.tensor_pitch[t], columns);
  const Values<kColumns> sums = Multiply<Depth, kColumns>(x, constants + kOffset);
  if constexpr (L == K::kLast) {
    using Output = typename K::Output;
    const auto y = Chain::template finish<Output>(sums, operands, epilogue.params);
    StoreRow<Output, K::kAlignOut>(y, chain.d, row * chain.ldd, columns);
  } else {
    const auto y = Chain::template finish<Element>(
        sums, operands, epilogue.params);  // as the tensor between the layers would hold it
    ComputeFrom<K, L + 1>(chain, constants, row,
                          cutlass::NumericArrayConverter<float, Element, kColumns>{}(y));
  }
}

}  // namespace b2b_gemm_small
}  // namespace onnxbolt
