// GEMM of our own for sm_90a.
//
// Persistent and warp-specialized (sm90/persistent.h): a producer warpgroup feeds a ring of operand
// tiles by TMA, one to three consumer warpgroups multiply with wgmma and run the epilogue. Clusters
// share operands by multicast, k may be split, small m may be computed as the transposed product.
// Statistics of rows may go from one GEMM to the next (sm90/moments_epilogue.h).
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs.
#pragma once
#include "ops/gemm/check.h"
#include "sm90/moments_epilogue.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T). float is multiplied as TF32, rounded by TMA on its way
// into shared memory.
template <class Config, class ElementType, class OutputType, class ChainType>
struct GemmSm90 {
  static constexpr bool kMoments = sm90::HasMoments<ChainType>;
  using Shape =
      std::conditional_t<kMoments, sm90::MomentsShape<Config, ElementType, OutputType, ChainType>,
                         sm90::KernelShape<Config, ElementType, OutputType, ChainType>>;
  using End = std::conditional_t<kMoments, sm90::MomentsTileEnd<Shape>, sm90::TileEnd<Shape>>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = Shape::kSharedMemory;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, false, End>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.ldd * sizeof(Output) % 16 != 0)
      return "D's pitch is not a multiple of 16 bytes, as TMA needs";
    using Pointwise = typename Shape::Chain;
    if (const char* error = CheckOperands<Pointwise, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    if (const char* error = check_moments(gemm)) return error;
    return sm90::CheckProblem<Shape>(gemm.m, gemm.n, gemm.k, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0 || gemm.n == 0) return nullptr;
    typename End::Params params{};
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
    describe_moments(params, gemm);
    return sm90::LaunchKernel<Shape, false, End>(params, launch);
  }

 private:
  static const char* check_moments(const GemmArguments& gemm) {
    if constexpr (kMoments) {
      const auto check = [](const float* moments, int64_t columns) {
        if (columns % kPartColumns != 0) return "rows with statistics are multiples of 64";
        return moments && IsAligned(moments, sizeof(sm90::Moments))
                   ? nullptr
                   : "statistics of rows are missing, or not aligned to 8 bytes";
      };
      const char* error = Shape::kReads ? check(gemm.moments_of_a, gemm.k) : nullptr;
      if (error) return error;
      if (Shape::kWrites) return check(gemm.moments_of_d, gemm.n);
    }
    return nullptr;
  }

  static void describe_moments(typename End::Params& params, const GemmArguments& gemm) {
    if constexpr (kMoments) {
      params.of_input = {reinterpret_cast<const sm90::Moments*>(gemm.moments_of_a),
                         static_cast<int>(gemm.k / kPartColumns), static_cast<int>(gemm.m)};
      params.of_result = reinterpret_cast<sm90::Moments*>(gemm.moments_of_d);
    }
  }

  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");
};

}  // namespace onnxbolt
