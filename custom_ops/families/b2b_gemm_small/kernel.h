// Two to four GEMMs too narrow for tensor cores in one kernel, for every architecture.
//
// A thread computes all layers of a row in fp32 and keeps intermediate results in registers.
// Weights lie in shared memory as fp32, transposed: the weights that a row's value is multiplied by
// are one wide access, the same for all threads.
//
// Constraints: columns are multiples of 4 as configured; all weights and vectors fit 48 KB.
#pragma once
#include "b2b/layers.h"
#include "epilogue/chain.h"
#include "families/b2b_gemm_small/rows.h"
#include "ops/gemm_chain/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/integers.h"

namespace onnxbolt {
namespace b2b_gemm_small {

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class K>
static __global__ void __launch_bounds__(K::kThreads)
    Run(const __grid_constant__ ChainArguments chain) {
  extern __shared__ __align__(16) float constants[];
  LoadConstants<K>(chain, constants);
  __syncthreads();
  LaunchDependents();
  WaitForPredecessors();
  const int64_t row = int64_t(blockIdx.x) * K::kThreads + threadIdx.x;
  if (row >= chain.m) return;
  const auto x = LoadRow<typename K::Element, K::kAlignIn, K::kDepth>(chain.a, row * chain.lda,
                                                                      static_cast<int>(chain.k));
  ComputeFrom<K, 0>(chain, constants, row, x);
}

}  // namespace b2b_gemm_small

// See ChainArguments and b2b_gemm_small::Shape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bGemmSmall : b2b_gemm_small::Shape<Config, ElementType, OutputType, Chains...> {
  using Shape = b2b_gemm_small::Shape<Config, ElementType, OutputType, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = Shape::kConstants * sizeof(float);

  static const char* prepare() {
    return ReserveSharedMemory(b2b_gemm_small::Run<Shape>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (const char* error = CheckExtents(chain.m, 1, chain.k)) return error;
    if (const char* error = Shape::check_layers(chain)) return error;
    if (chain.k > Shape::kDepth) return "k exceeds the kernel's";
    constexpr int kIn = Shape::kAlignIn, kOut = Shape::kAlignOut;
    if (chain.k % kIn != 0 || chain.lda % kIn != 0 || !IsAligned(chain.a, kIn * sizeof(Element)))
      return "A, its pitch or k is not aligned to align_a elements";
    if (chain.n[Shape::kLast] % kOut != 0 || chain.ldd % kOut != 0 ||
        !IsAligned(chain.d, kOut * sizeof(Output)))
      return "D, its pitch or n is not aligned to align_c elements";
    return CheckOperands<typename Shape::template ChainOf<Shape::kLast>, Element>(
        chain.epilogue[Shape::kLast], kOut);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const ChainArguments chain =
        Shape::spread_params(*static_cast<const ChainArguments*>(arguments));
    if (chain.m == 0) return nullptr;
    const auto blocks = static_cast<unsigned>(CeilDivide(chain.m, Shape::kThreads));
    return LaunchDependent(b2b_gemm_small::Run<Shape>, blocks, Shape::kThreads, launch.stream,
                           chain, ArchOf<Row>::kDependentLaunch, kSharedMemory);
  }
};

}  // namespace onnxbolt
