// The host's part of kernels of back-to-back GEMMs: checks, tensor maps, the launch.
#pragma once
#include "ops/gemm_chain/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/integers.h"
#include "sm90/b2b/shape.h"
#include "sm90/tensor_map.h"

namespace onnxbolt {
namespace sm90 {

// The functions that a registered kernel needs (see ChainArguments). `KernelShape`: constants of
// the kernel `Instance::kKernel`, such as sm90/b2b/shape.h.
template <class Instance, class KernelShape>
struct ChainInstance : KernelShape {
  using Shape = KernelShape;
  using Row = typename Shape::Row;
  using Element = typename Shape::Element;
  using Output = typename Shape::Output;

  static const char* prepare() {
    return ReserveSharedMemory(Instance::kKernel, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    if (const char* error = CheckExtents(chain.m, 1, chain.k)) return error;
    if (chain.m > 0x7fffffff - 64 * Shape::kGroups) return "m is too close to 2^31";
    if (const char* error = Shape::check_layers(chain)) return error;
    if (!IsAligned(chain.a, 16)) return "A does not begin at a multiple of 16 bytes";
    if (Shape::kRowsByTma && (chain.k % 8 != 0 || chain.lda % 8 != 0))
      return "A's rows are not multiples of 16 bytes, as TMA needs";
    if (chain.lda > 1 << 20) return "A's rows lie too far apart";
    if (chain.k > Shape::kDepth || chain.k <= Shape::kDepth - 64)
      return "the kernel is for another k";
    for (int i = 0; i < Shape::kLayers; ++i) {
      if (!RowsAreWide(chain.weights[i], chain.weight_pitch(i)))
        return "a layer's weights have rows that are not multiples of 16 bytes, as TMA needs";
    }
    return CheckOperands<typename Shape::template ChainOf<Shape::kLast>, Element>(
        chain.epilogue[Shape::kLast], 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const ChainArguments chain =
        Shape::spread_params(*static_cast<const ChainArguments*>(arguments));
    if (chain.m == 0) return nullptr;
    ChainParams params{};
    if (const char* error = describe(params, chain)) return error;
    return LaunchDependent(Instance::kKernel, std::min(params.tiles, launch.sm_count),
                           Shape::kThreads, launch.stream, params, ArchOf<Row>::kDependentLaunch,
                           Shape::kSharedMemory);
  }

 private:
  static bool RowsAreWide(const void* data, int64_t columns) {
    return IsAligned(data, 16) && columns * sizeof(Element) % 16 == 0;
  }

  static const char* describe(ChainParams& params, const ChainArguments& chain) {
    params.rows = static_cast<int>(chain.m),
    params.tiles = CeilDivide(params.rows, Shape::kStageRows);
    params.a_data = chain.a, params.k = static_cast<int>(chain.k), params.lda = chain.lda;
    if constexpr (Shape::kRowsByTma) {
      if (const char* error = encode(params.a, chain.a, chain.k, chain.m, chain.lda, Shape::box(0),
                                     Shape::kStageRows))
        return error;
    }
    for (int i = 0; i < Shape::kLayers; ++i) {
      if (const char* error =
              encode(params.weights[i], chain.weights[i], chain.depth(i), chain.n[i],
                     chain.weight_pitch(i), Shape::box(i), Shape::block(i)))
        return error;
      params.columns[i] = static_cast<int>(chain.n[i]);
      params.operands[i] = chain.epilogue[i];
    }
    return describe_output(params, chain);
  }

  static const char* describe_output(ChainParams& params, const ChainArguments& chain) {
    const int64_t pitch = chain.ldd * int64_t(sizeof(Output)), columns = chain.n[Shape::kLast];
    params.d_data = chain.d, params.ldd = chain.ldd;
    params.stores_by_tma =
        pitch % 16 == 0 && columns * sizeof(Output) % 16 == 0 && IsAligned(chain.d, 16);
    if constexpr (Shape::Finish::kResidual) {
      const EpilogueArguments& operands = chain.epilogue[Shape::kLast];
      const int64_t residual_pitch = operands.tensor_pitch[0] * int64_t(sizeof(Element));
      params.stores_by_tma &= residual_pitch % 16 == 0 && IsAligned(operands.tensors[0], 16);
      if (!params.stores_by_tma) return nullptr;
      const char* error = encode_rows(params.residual, kPlainType<Element>, operands.tensors[0],
                                      columns, chain.m, residual_pitch, 64);
      if (error) return error;
    }
    if (!params.stores_by_tma) return nullptr;
    return encode_rows(params.d, kPlainType<Output>, chain.d, columns, chain.m, pitch, kStoredRows);
  }

  static const char* encode_rows(CUtensorMap& map, CUtensorMapDataType type, const void* data,
                                 int64_t columns, int64_t rows, int64_t pitch, int box_rows) {
    return EncodeTiled(map, type, sizeof(Output), data,
                       {{columns, 0, Shape::Finish::kUnitColumns}, {rows, pitch, box_rows}});
  }

  static const char* encode(CUtensorMap& map, const void* data, int64_t columns, int64_t rows,
                            int64_t pitch, int box, int box_rows) {
    return EncodeTiled(map, kOperandType<Element>, sizeof(Element), data,
                       {{columns, 0, box}, {rows, pitch * int64_t(sizeof(Element)), box_rows}});
  }
};

}  // namespace sm90
}  // namespace onnxbolt
