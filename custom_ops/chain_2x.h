// Back-to-back GEMMs with mma.sync (Bolt, section 3.1.1), for sm_75, sm_80 and later: the first product is CUTLASS 2.x's, and so is the
// last epilogue; a block has all columns of every layer, and what lies between them in registers or in shared memory.
//
// Of CUTLASS's example 13 this is the scheme, not the code: an operator between its layers takes one scale and one bias, a chain any
// vectors and parameters, and its second product waits for its weights, which are here before the first one ends.
#pragma once
#include "chain/product_2x.h"

namespace onnxbolt {
namespace chain_2x {

template <class K>
struct Params {
  typename K::Mma::IteratorA::Params a;
  typename K::Mma::IteratorB::Params first_weights;
  typename K::Epilogue::FusionCallbacks::Params output;
  ChainArguments chain;
};

// Asynchronously where the architecture can; zeros beyond the layers' ends.
template <class K, int L = 1>
__device__ void LoadWeights(const ChainArguments& chain, Memory<K> memory) {
  if constexpr (L < K::kLayers) {
    using Element = typename K::Element;
    constexpr int kChunk = 16 / sizeof(Element), kChunks = K::depth(L) / kChunk, kPitch = K::pitch(K::depth(L));
    const auto* from = static_cast<const Element*>(chain.weights[L]);
    const int columns = static_cast<int>(chain.n[L]), depth = static_cast<int>(chain.depth(L));
    for (int i = threadIdx.x; i < K::columns(L) * kChunks; i += K::kThreads) {
      const int n = i / kChunks, k = i % kChunks * kChunk;
      const bool inside = n < columns && k < depth;
      cutlass::arch::cp_async_zfill<16, cutlass::arch::CacheOperation::Global>(
          memory.template weights<L>() + n * kPitch + k, inside ? from + n * depth + k : from, inside);
    }
    LoadWeights<K, L + 1>(chain, memory);
  }
}

// Of the inner layers; zeros beyond their ends.
template <class K, int L = 0>
__device__ void LoadVectors(const ChainArguments& chain, Memory<K> memory) {
  if constexpr (L < K::kLast) {
    constexpr int kColumns = K::columns(L), kValues = K::vectors(L) * kColumns;
    for (int i = threadIdx.x; i < kValues; i += K::kThreads) {
      const int column = i % kColumns;
      memory.template vectors<L>()[i] = column < chain.n[L] ? chain.epilogue[L].vectors[i / kColumns][column] : 0.f;
    }
    LoadVectors<K, L + 1>(chain, memory);
  }
}

// The block's rows of A by the first layer's weights. Behind it all that the block has copied is there.
template <class K>
__device__ void MultiplyRows(const Params<K>& params, Memory<K> memory, typename K::template Sums<0>& sums) {
  using Mma = typename K::Mma;
  using Element = typename K::Element;
  const ChainArguments& chain = params.chain;
  const int rows = static_cast<int>(chain.m), k = static_cast<int>(chain.k), columns = static_cast<int>(chain.n[0]);
  const int thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync();
  auto* a = static_cast<Element*>(const_cast<void*>(chain.a));
  auto* weights = static_cast<Element*>(const_cast<void*>(chain.weights[0]));
  typename Mma::IteratorA rows_of_a(params.a, a, {rows, k}, thread, {static_cast<int>(blockIdx.x) * K::kRows, 0});
  typename Mma::IteratorB first_weights(params.first_weights, weights, {k, columns}, thread, {0, 0});
  Mma mma(memory.template as<typename Mma::SharedStorage>(), thread, warp, thread % 32);
  sums.clear();
  mma(CeilDivide(k, Mma::Shape::kK), sums, rows_of_a, first_weights, sums);
  cutlass::arch::cp_async_fence();
  cutlass::arch::cp_async_wait<0>();
  __syncthreads();
}

// The layers behind layer L, whose sums these are.
template <class K, int L = 0>
__device__ void ContinueFrom(const Params<K>& params, Memory<K> memory, const typename K::template Sums<L>& sums) {
  if constexpr (L == K::kLast) {
    using Epilogue = typename K::Epilogue;
    const auto shape = cute::make_shape(static_cast<int>(params.chain.m), static_cast<int>(params.chain.n[L]), 1);
    const int thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync();
    Epilogue epilogue(params.output, memory.template as<typename Epilogue::SharedStorage>(), thread, warp, thread % 32);
    epilogue(sums, {static_cast<int>(blockIdx.x), 0, 0}, shape, thread);
  } else {
    Result<K, L> result(params.chain, memory);
    result.finish(sums);
    typename K::template Sums<L + 1> next;
    Multiply<K, L + 1>(result, memory, next);
    ContinueFrom<K, L + 1>(params, memory, next);
  }
}

template <class K>
__global__ void __launch_bounds__(K::kThreads) ChainKernel(const __grid_constant__ Params<K> params) {
  extern __shared__ __align__(128) char shared[];
  const Memory<K> memory{shared};
  LoadWeights<K>(params.chain, memory);
  LoadVectors<K>(params.chain, memory);
  typename K::template Sums<0> sums;
  MultiplyRows<K>(params, memory, sums);
  ContinueFrom<K>(params, memory, sums);
}

}  // namespace chain_2x

// See ChainArguments and chain_2x::Shape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct Chain2x : chain_2x::Shape<Config, ElementType, OutputType, Chains...> {
  using Shape = chain_2x::Shape<Config, ElementType, OutputType, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() { return ReserveSharedMemory(chain_2x::ChainKernel<Shape>, Shape::kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (const char* error = CheckExtents(chain.m, 1, chain.k)) return error;
    if (chain.m > 0x7fffffff - Shape::kRows) return "m is too close to 2^31";
    if (chain.layers != Shape::kLayers) return "the kernel is for another number of layers";
    for (int i = 0; i < Shape::kLayers; ++i) {
      if (chain.n[i] < 1 || chain.n[i] > Shape::columns(i)) return "a layer has more columns than the kernel";
      const int align = i == 0 ? Row::at(kAlignB) : 8;
      if (chain.weight_pitch(i) % align != 0 || !IsAligned(chain.weights[i], align * sizeof(Element)))
        return "a layer's weights or their pitch are not aligned to align_b elements, or behind the first layer to 16 bytes";
    }
    if (const char* error = Shape::check_vectors(chain)) return error;
    constexpr int kIn = Row::at(kAlignA), kOut = Row::at(kAlignC);
    if (chain.k % kIn != 0 || chain.lda % kIn != 0 || !IsAligned(chain.a, kIn * sizeof(Element)))
      return "A, its pitch or k is not aligned to align_a elements";
    if (chain.n[Shape::kLast] % kOut != 0 || chain.ldd % kOut != 0 || !IsAligned(chain.d, kOut * sizeof(Output)))
      return "D, its pitch or n is not aligned to align_c elements";
    return CheckOperands<typename Shape::template ChainOf<Shape::kLast>, Element>(chain.epilogue[Shape::kLast], kOut);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const ChainArguments chain = Shape::spread_params(*static_cast<const ChainArguments*>(arguments));
    if (chain.m == 0) return nullptr;
    using Mma = typename Shape::Mma;
    const chain_2x::Params<Shape> params{
        typename Mma::IteratorA::Params(typename Mma::IteratorA::Layout(chain.lda)),
        typename Mma::IteratorB::Params(typename Mma::IteratorB::Layout(chain.weight_pitch(0))),
        {chain.epilogue[Shape::kLast], static_cast<Output*>(chain.d), chain.ldd}, chain};
    const auto blocks = static_cast<unsigned>(CeilDivide(chain.m, Shape::kRows));
    chain_2x::ChainKernel<Shape><<<blocks, Shape::kThreads, Shape::kSharedMemory, launch.stream>>>(params);
    return ErrorText(cudaGetLastError());
  }
};

}  // namespace onnxbolt
