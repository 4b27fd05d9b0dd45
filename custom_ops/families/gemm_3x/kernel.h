// GEMM of CUTLASS 3.x for sm_90a: persistent and warp-specialized, TMA loads and stores, wgmma.
//
// A producer warp feeds a ring of operand tiles; the consumer warpgroups share a tile (cooperative)
// or take turns (pingpong). Our steps are a visitor tree of CUTLASS's (sm90/visitor_3x.h).
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/gemm.h"
// The parts of collective_mma.hpp, collective_builder.hpp and gemm_universal.hpp that are sm_90's:
// all of them take twice as long to read. Each declaration stands before its specializations.
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp"
#include "ops/gemm/check.h"
#include "runtime/instance.h"
#include "sm90/visitor_3x.h"

namespace onnxbolt {

template <class Instance>
__global__ void __launch_bounds__(Instance::Gemm::MaxThreadsPerBlock, 1)
    gemm_3x_kernel(const __grid_constant__ typename Instance::Gemm::Params params) {
  extern __shared__ __align__(1024) char swizzled_memory[];
  typename Instance::Gemm gemm;
  gemm(params, swizzled_memory);
}

// D[m, n] = epilogue(A[m, k] B[n, k]^T). float is multiplied as TF32, rounded by TMA on its way
// into shared memory.
template <class Config, class ElementType, class OutputType, class Chain>
struct Gemm3x {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr bool kIsCooperative = Row::at(kSchedule) == kCooperative;
  static constexpr int kAlignD = 16 / sizeof(Output);

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(kIsCooperative || Row::at(kSchedule) == kPingpong,
                "a 3.x kernel is cooperative or pingpong");
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");

  using Tile = cute::Shape<cute::Int<Row::at(kTileM)>, cute::Int<Row::at(kTileN)>,
                           cute::Int<Row::at(kTileK)>>;
  using Cluster =
      cute::Shape<cute::Int<Row::at(kClusterM)>, cute::Int<Row::at(kClusterN)>, cute::_1>;
  using RowMajor = cutlass::layout::RowMajor;
  using Tree = epilogue::ChainTree<Tile, Chain, Element, Output>;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, typename Tree::ElementSource,
      RowMajor, 16 / sizeof(Element), Output, RowMajor, kAlignD,
      cute::conditional_t<kIsCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                          cutlass::epilogue::TmaWarpSpecialized>,
      typename Tree::Callbacks>::CollectiveOp;
  using Stages =
      cute::conditional_t<Row::at(kStages) == 0,
                          cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
                              sizeof(typename Epilogue::SharedStorage))>,
                          cutlass::gemm::collective::StageCount<Row::at(kStages)>>;
  using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, Row::at(kAlignA),
      Element, cutlass::layout::ColumnMajor, Row::at(kAlignB), float, Tile, Cluster, Stages,
      cute::conditional_t<kIsCooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                          cutlass::gemm::KernelTmaWarpSpecializedPingpong>>::CollectiveOp;
  using Gemm =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, MainLoop, Epilogue>;
  static constexpr int kSharedMemory = Gemm::SharedStorageSize;
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory,
                "a block needs more shared memory than it can have");

  static const char* prepare() {
    return ReserveSharedMemory(gemm_3x_kernel<Gemm3x>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.n % kAlignD != 0 || gemm.ldd % kAlignD != 0)
      return "D's rows are not multiples of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<Chain, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    return Gemm::can_implement(problem(gemm, 1, 1)) ? nullptr
                                                    : "CUTLASS refuses the shape or alignment";
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    auto params = Gemm::to_underlying_arguments(
        problem(gemm, launch.sm_count, launch.config[kSwizzle]), nullptr);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {Row::at(kClusterM), Row::at(kClusterN), 1};
    cudaLaunchConfig_t config{};
    config.gridDim = Gemm::get_grid_shape(params);
    config.blockDim = Gemm::get_block_shape();
    config.dynamicSmemBytes = kSharedMemory;
    config.stream = launch.stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return ErrorText(cudaLaunchKernelEx(&config, gemm_3x_kernel<Gemm3x>, params));
  }

 private:
  static typename Gemm::Arguments problem(const GemmArguments& gemm, int sm_count,
                                          int64_t swizzle) {
    const EpilogueArguments& operands = gemm.epilogue;
    typename Gemm::Arguments problem{};
    problem.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    problem.problem_shape = {int(gemm.m), int(gemm.n), int(gemm.k), 1};
    problem.mainloop.ptr_A = static_cast<const Element*>(gemm.a);
    problem.mainloop.dA = {gemm.lda, {}, 0};
    problem.mainloop.ptr_B = static_cast<const Element*>(gemm.b);
    problem.mainloop.dB = {gemm.ldb, {}, 0};
    problem.epilogue.thread = Tree::arguments(operands);
    if constexpr (Chain::kTensors > 0) {
      problem.epilogue.ptr_C = static_cast<const Element*>(operands.tensors[0]);
      problem.epilogue.dC = {operands.tensor_pitch[0], {}, 0};
    }
    problem.epilogue.ptr_D = static_cast<Output*>(gemm.d);
    problem.epilogue.dD = {gemm.ldd, {}, 0};
    problem.hw_info.sm_count = sm_count;
    problem.scheduler.max_swizzle_size = static_cast<int>(swizzle);
    return problem;
  }
};

}  // namespace onnxbolt
