// Back-to-back GEMMs of our own for sm_90a: two and more layers in one persistent kernel (Bolt,
// section 3.1.1), with the intermediate results in registers.
//
// TMA brings tiles of rows into rings; a consumer warpgroup multiplies 64 of them by the first
// layer's weights, activates the accumulators, converts them in place to the operand of the next
// product, and so on; the last layer ends as any tile does (sm90/epilogue.h).
#pragma once
#include "chain/consumer.h"
#include "chain/launch.h"
#include "chain/producer.h"
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

}  // namespace sm90

// See ChainArguments and sm90::ChainShape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bGemmSm90
    : sm90::ChainInstance<B2bGemmSm90<Config, ElementType, OutputType, Chains...>,
                          sm90::ChainShape<Config, ElementType, OutputType, Chains...>> {
  static constexpr auto kKernel =
      sm90::ChainKernel<sm90::ChainShape<Config, ElementType, OutputType, Chains...>>;
};

}  // namespace onnxbolt
