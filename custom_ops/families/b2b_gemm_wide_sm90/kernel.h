// Two to four GEMMs of up to 512 columns in one persistent kernel for sm_90a (Bolt, section 3.1.1),
// with the intermediate results in shared memory.
//
// Two consumer warpgroups share 64 rows, or have 64 each. A layer's products end in registers, go
// through its epilogue and into swizzled shared memory, where the next layer reads them. The
// weights of all layers, of one tile after the other, come through one ring.
//
// Constraints: fp16 or bf16; columns are multiples of 16 as configured; weights' rows are multiples
// of 16 bytes.
#pragma once
#include "sm90/b2b/launch.h"
#include "sm90/b2b/vectors.h"
#include "families/b2b_gemm_wide_sm90/consumer.h"
#include "families/b2b_gemm_wide_sm90/producer.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
__device__ void InitializeWide(const ChainParams& params, typename K::Barriers& barriers) {
  for (int i = 0; i < K::kStages; ++i) {
    barriers.full[i].init(1);
    barriers.empty[i].init(K::kGroups);
  }
  for (int i = 0; i < K::kRowStages; ++i) {
    barriers.rows_full[i].init(K::kRowsByTma ? 1 : K::kRowThreads);
    barriers.rows_empty[i].init(K::kGroups * (K::kRowsByTma ? 1 : kWarps));
  }
  FenceBarrierInit();
  PrefetchMaps<K>(params);
}

// Overlaps with its neighbours (dependent_launch.h): barriers and vectors do not wait for the
// kernel before, nor do weights. Consumers have no registers left to load vectors.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    WideChainKernel(const __grid_constant__ ChainParams params) {
  extern __shared__ __align__(1024) char shared[];
  const WideMemory<K> memory{shared};
  if (threadIdx.x == 0) InitializeWide<K>(params, memory.barriers());
  LoadVectors<K, K::kThreads>(params, memory, threadIdx.x);
  __syncthreads();
  LaunchDependents();
  SplitRoles<K>(
      [&](int warp) {
        if (warp == 0) {
          if (ElectOne()) ProduceWeights<K>(params, memory);
        } else if (!K::kRowsByTma || (warp == 1 && ElectOne())) {
          ProduceRows<K>(params, memory, threadIdx.x - 32);
        }
      },
      [&](int group) { WideConsumer<K>(params, memory, group).run(); });
}

}  // namespace sm90

// See ChainArguments and sm90::WideShape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bGemmWideSm90
    : sm90::ChainInstance<B2bGemmWideSm90<Config, ElementType, OutputType, Chains...>,
                          sm90::WideShape<Config, ElementType, OutputType, Chains...>> {
  static constexpr auto kKernel =
      sm90::WideChainKernel<sm90::WideShape<Config, ElementType, OutputType, Chains...>>;
};

}  // namespace onnxbolt
