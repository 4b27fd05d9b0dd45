// Two products in one kernel for sm_90a whose first result is stored as well, or has residuals, or
// both: the end of a residual block and the 1x1 convolution that begins the next one. This saves
// reading that result again, and writing it where nobody else reads it.
//
// A warpgroup keeps its 64 rows of A in shared memory and walks over the first product's columns,
// 64 at a time. Each block of columns goes through its epilogue, is stored if asked for, and at
// once becomes a part of the second product's sum.
//
// Constraints: fp16 or bf16; two layers; tensors are the first layer's; all rows are multiples of
// 16 bytes, as TMA needs.
#pragma once
#include "families/b2b_stored_sm90/consumer.h"
#include "families/b2b_stored_sm90/producer.h"
#include "ops/gemm_chain/arguments.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
__device__ void InitializeStored(const StoredParams& params, typename K::Barriers& barriers) {
  for (int i = 0; i < K::kWeightStages; ++i) {
    barriers.weights_full[i].init(1);
    barriers.weights_empty[i].init(K::kGroups);
  }
  for (int group = 0; group < K::kGroups; ++group) {
    for (int i = 0; i < K::kStages; ++i) {
      barriers.rows_full[group][i].init(1);
      barriers.rows_empty[group][i].init(1);
    }
    for (int i = 0; i < K::Store::kBuffers; ++i) {
      barriers.residual_loaded[group][i].init(1);
      barriers.residual_free[group][i].init(kWarps);
    }
  }
  FenceBarrierInit();
  Prefetch(params.rows);
  Prefetch(params.weights[0]);
  Prefetch(params.weights[1]);
  Prefetch(params.d);
  if constexpr (K::Store::kStores) Prefetch(params.stored);
  if constexpr (K::Store::kResidual) Prefetch(params.residual);
}

// Overlaps with its neighbours (dependent_launch.h): barriers, vectors and weights do not wait for
// the kernel before.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    StoredKernel(const __grid_constant__ StoredParams params) {
  extern __shared__ __align__(1024) char shared[];
  const StoredMemory<K> memory{shared};
  if (threadIdx.x == 0) InitializeStored<K>(params, memory.barriers());
  __syncthreads();
  LaunchDependents();
  SplitRoles<K>(
      [&](int warp) {
        if (warp == 0 && ElectOne()) LoadBlocks<K>(params, memory);
        if (warp == 1 && ElectOne()) LoadRows<K>(params, memory);
        if constexpr (K::Store::kResidual) {
          if (warp == 2 && ElectOne()) LoadResiduals<K>(params, memory);
        }
      },
      [&](int group) { StoredConsumer<K>(params, memory, group).run(); });
}

}  // namespace sm90

// See ChainArguments and sm90::StoredShape.
template <class Config, class ElementType, class OutputType, bool Stores, class First, class Last>
struct B2bStoredSm90 : sm90::StoredShape<Config, ElementType, OutputType, Stores, First, Last> {
  using Shape = sm90::StoredShape<Config, ElementType, OutputType, Stores, First, Last>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::StoredKernel<Shape>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (chain.layers != 2) return "the kernel is for two layers";
    if (Stores && chain.stored == nullptr)
      return "the kernel stores the first layer's result, for which there is no place";
    if (!Stores && chain.stored != nullptr)
      return "the first layer's result is to be stored, and the kernel does not store it";
    if (const char* error = CheckExtents(chain.m, chain.n[0], chain.k)) return error;
    if (chain.m > kMostRows) return "m is too close to 2^31";
    if (chain.k > Shape::kDepth || chain.n[0] > Shape::kInner || chain.n[1] > Shape::kColumns ||
        chain.n[0] < 1 || chain.n[1] < 1)
      return "the kernel is for fewer columns";
    if (!rows_are_wide<Element>(chain.a, chain.lda) || chain.k % kWide != 0)
      return "A's rows are not multiples of 16 bytes, as TMA needs";
    if (Stores && !rows_are_wide<Element>(chain.stored, chain.n[0]))
      return "the stored rows are not multiples of 16 bytes, as TMA needs";
    if (!rows_are_wide<Output>(chain.d, chain.ldd) || chain.n[1] * sizeof(Output) % 16 != 0)
      return "D's rows are not multiples of 16 bytes, as TMA needs";
    if (!rows_are_wide<Element>(chain.weights[0], chain.weight_pitch(0)) ||
        !rows_are_wide<Element>(chain.weights[1], chain.n[0]))
      return "a layer's weights have rows that are not multiples of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<First, Element>(chain.epilogue[0], kWide)) return error;
    return CheckOperands<Last, Element>(chain.epilogue[1], 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (chain.m == 0) return nullptr;
    const int tiles = static_cast<int>(CeilDivide(chain.m, Shape::kRows)),
              grid = std::min(tiles, launch.sm_count);
    sm90::StoredParams params{};
    params.row_count = static_cast<int>(chain.m),
    params.rounds = CeilDivide(tiles, grid * Shape::kGroups);
    for (int layer = 0; layer < 2; ++layer) {
      params.columns[layer] = static_cast<int>(chain.n[layer]);
      params.operands[layer] = chain.epilogue[layer];
    }
    std::copy_n(chain.epilogue[0].params + First::kParams, Last::kParams,
                params.operands[1].params);
    if (const char* error = describe(params, chain)) return error;
    return LaunchDependent(sm90::StoredKernel<Shape>, grid, Shape::kThreads, launch.stream, params,
                           ArchOf<Row>::kDependentLaunch, Shape::kSharedMemory);
  }

 private:
  static constexpr int kWide = 16 / static_cast<int>(sizeof(Element));
  static constexpr int64_t kMostRows =
      0x7fffffff - (1 << 20);  // a round's last tile may lie behind it

  template <class T>
  static bool rows_are_wide(const void* data, int64_t pitch) {
    return IsAligned(data, 16) && pitch * sizeof(T) % 16 == 0;
  }

  static const char* describe(sm90::StoredParams& params, const ChainArguments& chain) {
    constexpr int kBlock = Shape::kBlockColumns, kRows = Shape::kRows;
    const EpilogueArguments& first = chain.epilogue[0];
    if (const char* error =
            encode<Element>(params.rows, chain.a, chain.k, chain.m, chain.lda, Shape::kBox, kRows))
      return error;
    if (const char* error = encode<Element>(params.weights[0], chain.weights[0], chain.k,
                                            chain.n[0], chain.weight_pitch(0), Shape::kBox, kBlock))
      return error;
    if (const char* error = encode<Element>(params.weights[1], chain.weights[1], chain.n[0],
                                            chain.n[1], chain.n[0], kBlock, Shape::kColumns))
      return error;
    if constexpr (Shape::Store::kResidual) {
      if (const char* error = encode<Element>(params.residual, first.tensors[0], chain.n[0],
                                              chain.m, first.tensor_pitch[0], kBlock, kRows))
        return error;
    }
    if constexpr (Stores) {
      if (const char* error = encode<Element>(params.stored, chain.stored, chain.n[0], chain.m,
                                              chain.n[0], kBlock, sm90::kStoredRows))
        return error;
    }
    return encode<Output>(params.d, chain.d, chain.n[1], chain.m, chain.ldd,
                          Shape::Finish::kUnitColumns, sm90::kStoredRows);
  }

  // A matrix, `pitch` elements from one row to the next.
  template <class T>
  static const char* encode(CUtensorMap& map, const void* data, int64_t columns, int64_t rows,
                            int64_t pitch, int box, int box_rows) {
    return sm90::EncodeTiled(map, sm90::kPlainType<T>, sizeof(T), data,
                             {{columns, 0, box}, {rows, pitch * int64_t(sizeof(T)), box_rows}});
  }
};

}  // namespace onnxbolt
