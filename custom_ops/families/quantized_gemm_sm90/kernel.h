// GEMM of 8-bit codes for sm_90a: the persistent kernel of sm90/persistent.h with the operands,
// sums and epilogue of codes (sm90/codes.h).
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "ops/gemm/check.h"
#include "sm90/code_params.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T + offsets[n]).
template <class Config, class ElementType, class OutputType, class ChainType, bool Offsets = false>
struct QuantizedGemmSm90 : sm90::CodesShape<Config, ElementType, OutputType, ChainType, Offsets> {
  using Shape = sm90::CodesShape<Config, ElementType, OutputType, ChainType, Offsets>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, false>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const QuantizedGemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.ldd * sizeof(Output) % 16 != 0)
      return "D's pitch is not a multiple of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<ChainType, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(gemm.m, gemm.n, gemm.k, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const QuantizedGemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    sm90::CodeParams params{};
    params.image.filter_w = 1;
    if (const char* error = sm90::DescribeOutput<Shape>(params, gemm.m, gemm.n, gemm.k, 1, gemm.d,
                                                        gemm.ldd, gemm.epilogue, launch.config))
      return error;
    if (const char* error = sm90::DescribeMatrix<Shape>(params, gemm.a, gemm.m, gemm.k, gemm.lda))
      return error;
    if (const char* error =
            sm90::DescribeCodeWeights<Shape>(params, gemm.b, gemm.n, 1, gemm.k, gemm.ldb))
      return error;
    if (const char* error = sm90::DescribeOffsets<Shape>(params, gemm.offsets)) return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, false>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) == 16 && Row::at(kAlignB) == 16 &&
                    Row::at(kAlignC) * sizeof(Output) >= 16,
                "TMA moves rows of 16 bytes");
};

}  // namespace onnxbolt
