// A persistent kernel of back-to-back GEMMs whose intermediate results stay in registers. With one
// layer it serves a GEMM whose rows TMA cannot read.
//
// How it works:
//
// 1. A producer warp fills a ring with tiles of rows of A by TMA (sm90/b2b/producer.h); if TMA
// cannot
//    read them, the producer warpgroup copies them (sm90/b2b/rows.h).
// 2. Each consumer warpgroup multiplies 64 rows by the first layer's weights, applies that layer's
//    epilogue to the accumulators, and converts them in place to the operand of the next product
//    (sm90/b2b/next_product.h), and so on. Accumulators of wgmma have the layout of its operand A.
// 3. The last layer is stored by TMA, or directly if its rows are short (sm90/b2b/output.h).
//
// All weights stay in shared memory (resident), or the first layer's come through the ring with the
// rows.
//
// Constraints: elements of 2 bytes; columns and depths are multiples of 16, zeros included; two
// adjacent layers' accumulators and operand fit a thread's registers, and the weights fit shared
// memory.
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

// The kernel. It overlaps with its neighbours in the stream (runtime/dependent_launch.h): barriers,
// vectors and weights do not wait for the kernel before.
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
