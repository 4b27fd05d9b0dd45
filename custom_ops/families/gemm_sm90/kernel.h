// GEMM of our own for sm_90a.
//
// Persistent and warp-specialized (sm90/persistent.h): a producer warpgroup feeds a ring of operand
// tiles by TMA, one to three consumer warpgroups multiply with wgmma and run the epilogue. Clusters
// share operands by multicast, k may be split, small m may be computed as the transposed product.
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "ops/gemm/check.h"
#include "sm90/persistent.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). float is multiplied as TF32, rounded by TMA on its way
// into shared memory.
template <class Config, class ElementType, class OutputType, class ChainType>
struct GemmSm90 : sm90::KernelShape<Config, ElementType, OutputType, ChainType> {
  using Shape = sm90::KernelShape<Config, ElementType, OutputType, ChainType>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, false>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.ldd * sizeof(Output) % 16 != 0)
      return "D's pitch is not a multiple of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<ChainType, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(gemm.m, gemm.n, gemm.k, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    sm90::Params params{};
    params.image.filter_w = 1;
    if (const char* error = sm90::DescribeOutput<Shape>(params, gemm.m, gemm.n, gemm.k, 1, gemm.d,
                                                        gemm.ldd, gemm.epilogue, launch.config))
      return error;
    if (const char* error = sm90::DescribeMatrix<Shape>(params, gemm.a, gemm.m, gemm.k, gemm.lda))
      return error;
    if (const char* error =
            sm90::DescribeWeights<Shape>(params, gemm.b, gemm.n, 1, gemm.k, gemm.ldb))
      return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, false>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");
};

}  // namespace onnxbolt
