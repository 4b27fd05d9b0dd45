// GEMM for sm_90a whose epilogue normalizes whole rows of the result.
//
// The persistent kernel of other GEMMs (sm90/persistent.h) with another end of a tile
// (sm90/whole_rows.h): the blocks of a cluster hold all columns of a tile's rows, and exchange
// statistics through distributed shared memory.
//
// Constraints: rows of A, B and D are multiples of 16 bytes, as TMA needs; n is that of the
// configuration, tile_n times cluster_n.
#pragma once
#include "ops/gemm/check.h"
#include "sm90/whole_rows.h"

namespace onnxbolt {

// D[m, n] = epilogue(A[m, k] B[n, k]^T), with LayerNorm or RmsNorm in the chain; what is in front
// of it is a second output if Stores.
template <class Config, class ElementType, class OutputType, class ChainType, bool Stores>
struct GemmNormSm90 : sm90::NormShape<Config, ElementType, OutputType, ChainType, Stores> {
  using Shape = sm90::NormShape<Config, ElementType, OutputType, ChainType, Stores>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::NormKernel<Shape>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (const char* error = CheckGemm<Row, Element, Output>(gemm)) return error;
    if (gemm.n != Shape::kTileN * Shape::kRowBlocks)
      return "n is not that of the configuration's tiles";
    if (gemm.ldd * sizeof(Output) % 16 != 0)
      return "D's pitch is not a multiple of 16 bytes, as TMA needs";
    if (Stores && gemm.stored == nullptr) return "the second output is missing";
    if (!IsAligned(gemm.stored, 16)) return "the second output is not aligned to 16 bytes";
    using Pointwise = typename Shape::Chain;
    if (const char* error = CheckOperands<Pointwise, Element>(gemm.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(gemm.m, gemm.n, gemm.k, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& gemm = *static_cast<const GemmArguments*>(arguments);
    if (gemm.m == 0) return nullptr;
    sm90::NormParams params{};
    params.image.filter_w = 1;
    if (const char* error = sm90::DescribeOutput<Shape>(params, gemm.m, gemm.n, gemm.k, 1, gemm.d,
                                                        gemm.ldd, gemm.epilogue, launch.config))
      return error;
    if (const char* error = sm90::DescribeMatrix<Shape>(params, gemm.a, gemm.m, gemm.k, gemm.lda))
      return error;
    if (const char* error =
            sm90::DescribeWeights<Shape>(params, gemm.b, gemm.n, 1, gemm.k, gemm.ldb))
      return error;
    if (const char* error = describe_sums(params, gemm)) return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return LaunchDependent(sm90::NormKernel<Shape>, sm90::GridSize<Shape>(params, launch.sm_count),
                           Shape::kThreads, launch.stream, params, ArchOf<Row>::kDependentLaunch,
                           Shape::kSharedMemory, Shape::kClusterSize);
  }

 private:
  // The second output has dense rows.
  static const char* describe_sums(sm90::NormParams& params, const GemmArguments& gemm) {
    if constexpr (!Stores) return nullptr;
    return sm90::EncodeTiled(params.sums, sm90::kPlainType<Output>, sizeof(Output), gemm.stored,
                             {{gemm.n, 0, Shape::Finish::kUnitColumns},
                              {gemm.m, gemm.n * int64_t(sizeof(Output)), sm90::kStoredRows}});
  }

  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");
};

}  // namespace onnxbolt
