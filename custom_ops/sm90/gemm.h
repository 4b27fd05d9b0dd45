// The host's part of a GEMM by the persistent kernel, of values or of codes.
#pragma once
#include "ops/gemm/check.h"
#include "sm90/code_params.h"

namespace onnxbolt {
namespace sm90 {

// The functions of a family's instances (runtime/kernel.h); K: the kernel's constants
// (sm90/shape.h).
template <class K>
struct GemmFunctions : K {
  using typename K::Chain;
  using typename K::Element;
  using typename K::Output;
  using typename K::Row;
  using Arguments = std::conditional_t<K::kCodes, QuantizedGemmArguments, GemmArguments>;

  static const char* prepare() {
    return ReserveSharedMemory(PersistentKernel<K, false>, K::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const Arguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.ldd * sizeof(Output) % 16 != 0)
      return "D's pitch is not a multiple of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<Chain, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    if constexpr (K::kCodes) {
      if (const char* error = CheckOffsets<K>(gemm.offsets, 1)) return error;
      if (const char* error = CheckValues<K>(gemm)) return error;
    }
    return CheckProblem<K>(gemm.m, gemm.n, gemm.k, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const Arguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    typename K::ProductParams params{};
    params.image.filter_w = 1;
    if (const char* error = DescribeOutput<K>(params, gemm.m, gemm.n, gemm.k, 1, gemm.d, gemm.ldd,
                                              gemm.epilogue, launch.config))
      return error;
    if (const char* error = DescribeMatrix<K>(params, gemm.a, gemm.m, gemm.k, gemm.lda))
      return error;
    if (const char* error = DescribeWeights<K>(params, gemm.b, gemm.n, 1, gemm.k, gemm.ldb))
      return error;
    if constexpr (K::kCodes) DescribeCodes(params, gemm);
    if (const char* error = CheckLaunch<K>(params, launch.sm_count)) return error;
    return LaunchKernel<K, false>(params, launch);
  }
};

}  // namespace sm90
}  // namespace onnxbolt
