// The kernel of several GEMMs whose intermediate results stay in registers, and of one GEMM whose
// rows TMA cannot read (families/b2b_gemm_sm90, families/gemm_rows_sm90).
//
// A producer warp fills a ring with tiles of rows; each consumer warpgroup multiplies its 64 rows
// by one layer's weights after the other, which stay in shared memory (sm90/b2b/consumer.h).
#pragma once
#include "sm90/b2b/consumer.h"
#include "sm90/b2b/launch.h"
#include "sm90/b2b/producer.h"
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
  for (int group = 0; K::Finish::kResidual && group < K::kGroups; ++group) {
    for (int i = 0; i < K::Finish::kBuffers; ++i) {
      barriers.residual_loaded[group][i].init(1);
      barriers.residual_free[group][i].init(kWarps);
    }
  }
  FenceBarrierInit();
  PrefetchMaps<K>(params);
}

// Overlaps with its neighbours (dependent_launch.h): barriers do not wait for the kernel before,
// nor do vectors and weights.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    ChainKernel(const __grid_constant__ ChainParams params) {
  extern __shared__ __align__(1024) char shared[];
  const ChainMemory<K> memory{shared};
  if (threadIdx.x == 0) InitializeChain<K>(params, memory.barriers());
  __syncthreads();
  LaunchDependents();
  SplitRoles<K>(
      [&](int warp) {
        if (!K::kRowsByTma || (warp == 0 && ElectOne())) ProduceChain<K>(params, memory);
        if constexpr (K::Finish::kResidual) {
          if (warp == 1 && params.stores_by_tma && ElectOne()) ProduceResiduals<K>(params, memory);
        }
      },
      [&](int group) { ChainConsumer<K>(params, memory, group).run(); });
}

// See ChainArguments and ChainShape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bGemm : ChainInstance<B2bGemm<Config, ElementType, OutputType, Chains...>,
                               ChainShape<Config, ElementType, OutputType, Chains...>> {
  static constexpr auto kKernel =
      ChainKernel<ChainShape<Config, ElementType, OutputType, Chains...>>;
};

}  // namespace sm90
}  // namespace onnxbolt
