// GEMM of CUTLASS 2.x with mma.sync: sm_75 with two stages, sm_80 and later with cp.async
// pipelines; runs on sm_90, too.
//
// CUTLASS's main loop fills a tile of sums; its visitor epilogue applies our steps to them
// (mma/visitor.h).
//
// Constraints: k and the pitches of A and B are multiples of align_a and align_b, n and D's pitch
// of align_c; at most 65,535 batches, each of which is a plane of the grid.
#pragma once
#include "cutlass/gemm/kernel/default_gemm_universal.h"
#include "cutlass/gemm/kernel/gemm_universal_with_visitor.h"
#include "mma/tile.h"
#include "ops/gemm/check.h"

namespace onnxbolt {

template <class Instance>
__global__ void __launch_bounds__(Instance::Gemm::kThreadCount)
    gemm_2x_kernel(const __grid_constant__ typename Instance::Params params) {
  extern __shared__ int shared_memory[];
  Instance::Gemm::invoke(params,
                         *reinterpret_cast<typename Instance::Gemm::SharedStorage*>(shared_memory));
}

// D[m, n] = epilogue(A[m, k] B[n, k]^T), of each batch. float is multiplied as TF32, rounded to
// nearest in registers.
template <class Config, class ElementType, class OutputType, class Chain>
struct Gemm2x {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Tile = Tile2x<Row, Element, Output, Chain, epilogue::Batches::kRows>;

  using Default = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      Element, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, Row::at(kAlignA),
      Element, cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, Row::at(kAlignB),
      Element, cutlass::layout::RowMajor, float, cutlass::arch::OpClassTensorOp,
      typename Tile::Arch, typename Tile::Threadblock, typename Tile::Warp,
      typename Tile::Instruction, typename Tile::OutputOp, typename Tile::Swizzle, Row::at(kStages),
      cutlass::arch::OpMultiplyAdd>::GemmKernel;
  using Epilogue = typename Tile::template Epilogue<typename Default::Epilogue>;
  using Gemm = cutlass::gemm::kernel::GemmWithEpilogueVisitor<typename Default::Mma, Epilogue,
                                                              typename Tile::Swizzle>;
  using Params = typename Gemm::Params;
  static constexpr int kSharedMemory = sizeof(typename Gemm::SharedStorage);
  static constexpr int kMaxBatches = 65535;

  static const char* prepare() {
    return ReserveSharedMemory(gemm_2x_kernel<Gemm2x>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.batches > kMaxBatches) return "there are more batches than planes of a grid";
    return CheckOperands<Chain, Element>(gemm.epilogue, Row::at(kAlignC));
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    using Mode = cutlass::gemm::GemmUniversalMode;
    typename Gemm::Arguments problem(
        gemm.batches == 1 ? Mode::kGemm : Mode::kBatched, {int(gemm.m), int(gemm.n), int(gemm.k)},
        int(gemm.batches), {gemm.epilogue, static_cast<Output*>(gemm.d), gemm.ldd}, gemm.a, gemm.b,
        nullptr, nullptr, gemm.a_stride, gemm.b_stride, 0, 0, gemm.lda, gemm.ldb, 0, 0);
    Params params(problem, 0, 0);  // device facts matter to stream-K alone
    gemm_2x_kernel<Gemm2x>
        <<<params.get_grid_dims(), Gemm::kThreadCount, kSharedMemory, launch.stream>>>(params);
    return ErrorText(cudaGetLastError());
  }
};

}  // namespace onnxbolt
