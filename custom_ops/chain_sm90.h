// Back-to-back GEMMs of our own for sm_90a: two and more layers in one persistent kernel (Bolt, section 3.1.1), with the
// intermediate results in registers.
//
// TMA brings tiles of rows into rings; a consumer warpgroup multiplies 64 of them by the first layer's weights, activates the
// accumulators, converts them in place to the operand of the next product, and so on; the last layer ends as any tile does
// (sm90/epilogue.h).
#pragma once
#include "chain/consumer.h"
#include "chain/producer.h"
#include "dependent_launch.h"
#include "integers.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
__device__ void InitializeChain(const ChainParams& params, typename K::Barriers& barriers) {
  for (Barrier& barrier : barriers.weights) barrier.init(1);
  for (int ring = 0; ring < K::kRings; ++ring) {
    for (int i = 0; i < K::kStages; ++i) {
      barriers.full[ring][i].init((K::kLoadBytes > 0) + (K::kRowsByTma ? 0 : 128));
      barriers.empty[ring][i].init(K::kGroupsOfRing * (K::kRowsByTma ? 1 : 4));
    }
  }
  for (int group = 0; group < K::kGroups; ++group) {
    for (int i = 0; i < K::Finish::kBuffers; ++i) {
      barriers.residual_loaded[group][i].init(1);
      barriers.residual_free[group][i].init(kWarps);
    }
  }
  FenceBarrierInit();
  Prefetch(params.weights[0]);
  if constexpr (K::kRowsByTma) Prefetch(params.a);
}

// Zeros beyond the layers' ends.
template <class K, int L = 0>
__device__ void LoadVectors(const ChainParams& params, ChainMemory<K> memory) {
  if constexpr (L < K::kLayers) {
    constexpr int kColumns = K::columns(L), kValues = K::vectors(L) * kColumns;
    for (int i = threadIdx.x; i < kValues; i += K::kThreads) {
      const int column = i % kColumns;
      memory.template vectors<L>()[i] = column < params.columns[L] ? params.operands[L].vectors[i / kColumns][column] : 0.f;
    }
    LoadVectors<K, L + 1>(params, memory);
  }
}

// Overlaps with its neighbours (dependent_launch.h): barriers and vectors do not wait for the kernel before, nor do weights.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1) ChainKernel(const __grid_constant__ ChainParams params) {
  extern __shared__ __align__(1024) char shared[];
  const ChainMemory<K> memory{shared};
  if (threadIdx.x == 0) InitializeChain<K>(params, memory.barriers());
  LoadVectors<K>(params, memory);
  __syncthreads();
  LaunchDependents();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  using Split = RegisterSplit<K>;
  if (group == 0) {
    if constexpr (Split::kUsed) ReleaseRegisters<Split::kProducer>();
    if (!K::kRowsByTma || (warp == 0 && ElectOne())) ProduceChain<K>(params, memory);
    if constexpr (K::Finish::kResidual) {
      if (warp == 1 && params.stores_by_tma && ElectOne()) ProduceResiduals<K>(params, memory);
    }
  } else {
    if constexpr (Split::kUsed) ClaimRegisters<Split::kConsumer>();
    ChainConsumer<K>(params, memory, group - 1).run();
  }
}

}  // namespace sm90

// See ChainArguments and sm90::ChainShape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct ChainSm90 : sm90::ChainShape<Config, ElementType, OutputType, Chains...> {
  using Shape = sm90::ChainShape<Config, ElementType, OutputType, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() { return ReserveSharedMemory(sm90::ChainKernel<Shape>, Shape::kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (const char* error = CheckExtents(chain.m, 1, chain.k)) return error;
    if (chain.m > 0x7fffffff - 64 * Shape::kGroups) return "m is too close to 2^31";
    if (chain.layers != Shape::kLayers) return "the kernel is for another number of layers";
    if (!IsAligned(chain.a, 16)) return "A does not begin at a multiple of 16 bytes";
    if (Shape::kRowsByTma && (chain.k % 8 != 0 || chain.lda % 8 != 0)) return "A's rows are not multiples of 16 bytes, as TMA needs";
    if (chain.lda > 1 << 20) return "A's rows lie too far apart";
    if (chain.k > Shape::kDepth || chain.k <= Shape::kDepth - 64) return "the kernel is for another k";
    for (int i = 0; i < Shape::kLayers; ++i) {
      if (chain.n[i] < 1 || chain.n[i] > Shape::columns(i)) return "a layer has more columns than the kernel";
      if (!RowsAreWide(chain.weights[i], chain.weight_pitch(i)))
        return "a layer's weights have rows that are not multiples of 16 bytes, as TMA needs";
    }
    if (const char* error = Shape::check_vectors(chain)) return error;
    return CheckOperands<typename Shape::template ChainOf<Shape::kLast>, Element>(chain.epilogue[Shape::kLast], 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const ChainArguments chain = Shape::spread_params(*static_cast<const ChainArguments*>(arguments));
    if (chain.m == 0) return nullptr;
    sm90::ChainParams params{};
    if (const char* error = describe(params, chain)) return error;
    return LaunchDependent(sm90::ChainKernel<Shape>, std::min(params.tiles, launch.sm_count), Shape::kThreads, launch.stream, params,
                           Row::at(kArch), Shape::kSharedMemory);
  }

 private:
  static bool RowsAreWide(const void* data, int64_t columns) { return IsAligned(data, 16) && columns * sizeof(Element) % 16 == 0; }

  static const char* describe(sm90::ChainParams& params, const ChainArguments& chain) {
    params.rows = static_cast<int>(chain.m), params.tiles = CeilDivide(params.rows, Shape::kStageRows);
    params.a_data = chain.a, params.k = static_cast<int>(chain.k), params.lda = chain.lda;
    if constexpr (Shape::kRowsByTma) {
      if (const char* error = encode(params.a, chain.a, chain.k, chain.m, chain.lda, Shape::box(0), Shape::kStageRows)) return error;
    }
    for (int i = 0; i < Shape::kLayers; ++i) {
      if (const char* error = encode(params.weights[i], chain.weights[i], chain.depth(i), chain.n[i], chain.weight_pitch(i), Shape::box(i),
                                     Shape::columns(i)))
        return error;
      params.columns[i] = static_cast<int>(chain.n[i]);
      params.operands[i] = chain.epilogue[i];
    }
    return describe_output(params, chain);
  }

  static const char* describe_output(sm90::ChainParams& params, const ChainArguments& chain) {
    const int64_t pitch = chain.ldd * int64_t(sizeof(Output)), columns = chain.n[Shape::kLast];
    params.d_data = chain.d, params.ldd = chain.ldd;
    params.stores_by_tma = pitch % 16 == 0 && columns * sizeof(Output) % 16 == 0 && IsAligned(chain.d, 16);
    if constexpr (Shape::Finish::kResidual) {
      const EpilogueArguments& operands = chain.epilogue[Shape::kLast];
      const int64_t residual_pitch = operands.tensor_pitch[0] * int64_t(sizeof(Element));
      params.stores_by_tma &= residual_pitch % 16 == 0 && IsAligned(operands.tensors[0], 16);
      if (!params.stores_by_tma) return nullptr;
      const char* error =
          encode_rows(params.residual, sm90::kPlainType<Element>, operands.tensors[0], columns, chain.m, residual_pitch, 64);
      if (error) return error;
    }
    if (!params.stores_by_tma) return nullptr;
    return encode_rows(params.d, sm90::kPlainType<Output>, chain.d, columns, chain.m, pitch, sm90::kStoredRows);
  }

  static const char* encode_rows(
      CUtensorMap& map, CUtensorMapDataType type, const void* data, int64_t columns, int64_t rows, int64_t pitch, int box_rows) {
    return sm90::EncodeTiled(map, type, sizeof(Output), data, {{columns, 0, Shape::Finish::kUnitColumns}, {rows, pitch, box_rows}});
  }

  static const char* encode(CUtensorMap& map, const void* data, int64_t columns, int64_t rows, int64_t pitch, int box, int box_rows) {
    return sm90::EncodeTiled(map, sm90::kOperandType<Element>, sizeof(Element), data,
                             {{columns, 0, box}, {rows, pitch * int64_t(sizeof(Element)), box_rows}});
  }
};

}  // namespace onnxbolt
