// Back-to-back products with mma.sync in one kernel (Bolt, section 3.1.1).
//
// How it works: the first product has one of CUTLASS 2.x's main loops, and the last epilogue is
// CUTLASS's, too. A block has all columns of every layer, and results between layers are in
// registers or in shared memory. Further layers' weights are copied while the first product runs.
//
// The scheme is that of CUTLASS's example 13, the code is not: there an operator between layers
// takes one scale and one bias, and the second product waits for its weights.
//
// Constraints: elements of 2 bytes; columns are powers of two from 16 to 256, zeros included.
#pragma once
#include "mma/b2b/main_loop.h"
#include "mma/b2b/product.h"
#include "ops/gemm_chain/arguments.h"

namespace onnxbolt {
namespace b2b_2x {

template <class K>
struct Params {
  typename K::First::Operands first;
  typename K::Epilogue::FusionCallbacks::Params output;
  ChainArguments chain;
};

// Copies weights, asynchronously if the architecture can; zeros beyond the layers' ends.
template <class K, int L = 1>
__device__ void LoadWeights(const ChainArguments& chain, Memory<K> memory) {
  if constexpr (L < K::kLayers) {
    using Element = typename K::Element;
    constexpr int kChunk = 16 / sizeof(Element), kChunks = K::depth(L) / kChunk,
                  kPitch = K::pitch(K::depth(L));
    const auto* from = static_cast<const Element*>(chain.weights[L]);
    const int columns = static_cast<int>(chain.n[L]), depth = static_cast<int>(chain.depth(L));
    for (int i = threadIdx.x; i < K::columns(L) * kChunks; i += K::kThreads) {
      const int n = i / kChunks, k = i % kChunks * kChunk;
      const bool inside = n < columns && k < depth;
      cutlass::arch::cp_async_zfill<16, cutlass::arch::CacheOperation::Global>(
          memory.template weights<L>() + n * kPitch + k, inside ? from + n * depth + k : from,
          inside);
    }
    LoadWeights<K, L + 1>(chain, memory);
  }
}

// Copies the inner layers' vectors; zeros beyond their ends.
template <class K, int L = 0>
__device__ void LoadVectors(const ChainArguments& chain, Memory<K> memory) {
  if constexpr (L < K::kLast) {
    constexpr int kColumns = K::columns(L), kValues = K::vectors(L) * kColumns;
    for (int i = threadIdx.x; i < kValues; i += K::kThreads) {
      const int column = i % kColumns;
      memory.template vectors<L>()[i] =
          column < chain.n[L] ? chain.epilogue[L].vectors[i / kColumns][column] : 0.f;
    }
    LoadVectors<K, L + 1>(chain, memory);
  }
}

// Multiplies the block's rows by the first layer's weights. Afterwards all copies of the block are
// complete.
template <class K>
__device__ void MultiplyRows(const Params<K>& params, Memory<K> memory,
                             typename K::template Sums<0>& sums) {
  using Mma = typename K::Mma;
  Mma mma(memory.template as<typename Mma::SharedStorage>(), threadIdx.x,
          cutlass::canonical_warp_idx_sync(), threadIdx.x % 32);
  sums.clear();
  K::First::multiply(params.first, mma, sums);
  cutlass::arch::cp_async_fence();
  cutlass::arch::cp_async_wait<0>();
  __syncthreads();
}

// Runs the layers behind layer L, whose accumulators are given.
template <class K, int L = 0>
__device__ void ContinueFrom(const Params<K>& params, Memory<K> memory,
                             const typename K::template Sums<L>& sums) {
  if constexpr (L == K::kLast) {
    using Epilogue = typename K::Epilogue;
    const auto shape =
        cute::make_shape(static_cast<int>(params.chain.m), static_cast<int>(params.chain.n[L]), 1);
    const int thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync();
    Epilogue epilogue(params.output, memory.template as<typename Epilogue::SharedStorage>(), thread,
                      warp, thread % 32);
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
__global__ void __launch_bounds__(K::kThreads)
    ChainKernel(const __grid_constant__ Params<K> params) {
  extern __shared__ __align__(128) char shared[];
  const Memory<K> memory{shared};
  LoadWeights<K>(params.chain, memory);
  LoadVectors<K>(params.chain, memory);
  typename K::template Sums<0> sums;
  MultiplyRows<K>(params, memory, sums);
  ContinueFrom<K>(params, memory, sums);
}

// The functions that a registered kernel needs; K is its Shape.
template <class K>
struct Launcher : K {
  static const char* prepare() { return ReserveSharedMemory(ChainKernel<K>, K::kSharedMemory); }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  // Parameters of the layers, and of the products behind the first one.
  static const char* check(const ChainArguments& chain) {
    if (const char* error = CheckExtents(chain.m, 1, chain.k)) return error;
    if (chain.m > 0x7fffffff - K::kRows) return "m is too close to 2^31";
    if (const char* error = K::check_layers(chain)) return error;
    for (int i = 1; i < K::kLayers; ++i) {
      if (chain.depth(i) % 8 != 0 || !IsAligned(chain.weights[i], 16))
        return "weights behind the first layer have rows that are not multiples of 16 bytes";
    }
    constexpr int kOut = K::Row::at(kAlignC);
    if (chain.n[K::kLast] % kOut != 0 || chain.ldd % kOut != 0 ||
        !IsAligned(chain.d, kOut * sizeof(typename K::Output)))
      return "D, its pitch or n is not aligned to align_c elements";
    return CheckOperands<typename K::template ChainOf<K::kLast>, typename K::Element>(
        chain.epilogue[K::kLast], kOut);
  }

  static const char* launch(const typename K::First::Operands& first,
                            const ChainArguments& arguments, cudaStream_t stream) {
    const ChainArguments chain = K::spread_params(arguments);
    const Params<K> params{
        first,
        {chain.epilogue[K::kLast], static_cast<typename K::Output*>(chain.d), chain.ldd},
        chain};
    ChainKernel<K><<<static_cast<unsigned>(CeilDivide(chain.m, K::kRows)), K::kThreads,
                     K::kSharedMemory, stream>>>(params);
    return ErrorText(cudaGetLastError());
  }
};

}  // namespace b2b_2x
}  // namespace onnxbolt
