// GEMM for few rows of A, on every architecture: a token's or a class's head, whose time is that of
// reading the weights.
//
// How it works: a block has some columns of D, for 8 or 16 rows. Its warps divide k, and so do the
// blocks of a cluster where the columns alone would fill few SMs. Operands go straight from memory
// into registers: the 16 bytes of a row that a lane loads are its fragments for mma.sync. The
// warps' sums are added up in shared memory, and those of a cluster through it, in a fixed order:
// results are the same bits on every run.
//
// fp16 and bf16 are multiplied as they are, fp32 as TF32. Sums are fp32.
//
// Constraints: k and the pitches of A and B are multiples of align_a, n and D's pitch of align_c.
// More rows than a block has take further blocks, which read the weights again.
#pragma once
#include <algorithm>

#include "families/gemm_skinny/block.h"
#include "ops/gemm/check.h"

namespace onnxbolt {
namespace gemm_skinny {

extern __shared__ float4 shared_memory[];

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class S>
static __global__ void __launch_bounds__(S::kThreads) run(const __grid_constant__ Params params) {
  LaunchDependents();
  Block<S> block(params, reinterpret_cast<float*>(shared_memory));
  block.multiply();
  block.finish();
}

}  // namespace gemm_skinny

template <class Config, class ElementType, class OutputType, class Chain>
struct GemmSkinny {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Shape = gemm_skinny::Shape<Row, Element, Output, Chain>;
  static constexpr int kMostSplit = 8;  // blocks of a cluster, on every GPU that has clusters
  static constexpr int kSharedMemory = Shape::kBytes;

  static const char* prepare() {
    return ReserveSharedMemory(gemm_skinny::run<Shape>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    // further steps and columns than there are must be countable, too
    if (gemm.k > INT32_MAX / 2 || tiles(gemm) > INT32_MAX / kMostSplit)
      return "an extent exceeds the kernel's range";
    return CheckOperands<Chain, Element>(gemm.epilogue, Shape::kPart);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    const int split =
        ArchOf<Row>::kClusters ? int(std::min<int64_t>(launch.config[kSplitK], kMostSplit)) : 1;
    const gemm_skinny::Params params(gemm, Shape::kOfStep, Shape::kResults, split);
    const auto blocks = static_cast<unsigned>(tiles(gemm) * split);
    return LaunchDependent(gemm_skinny::run<Shape>, blocks, Shape::kThreads, launch.stream, params,
                           ArchOf<Row>::kDependentLaunch, kSharedMemory, split);
  }

 private:
  // Clusters of the launch.
  static int64_t tiles(const GemmArguments& gemm) {
    return CeilDivide(gemm.m, int64_t{Shape::kRows}) * CeilDivide(gemm.n, int64_t{Shape::kResults});
  }
};

}  // namespace onnxbolt
