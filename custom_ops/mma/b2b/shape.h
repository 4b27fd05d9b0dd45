// Back-to-back products with mma.sync: the constants of a kernel.
#pragma once
#include "b2b/layers.h"
#include "cutlass/gemm/warp/default_mma_tensor_op.h"
#include "cutlass/layout/tensor_op_multiplicand_sm75.h"
#include "runtime/integers.h"
#include "mma/tile.h"

namespace onnxbolt {
namespace b2b_2x {

// A layer's configuration as CUTLASS's kernels for one product have it: the block's rows and all
// columns of the layer. All warps across store 8 rows together, for which CUTLASS needs an access
// for each thread.
template <class Row, int Columns, int WarpColumns>
struct LayerRow {
  static constexpr int at(Column column) {
    switch (column) {
      case kTileN:
        return Columns;
      case kWarpM:
        return Row::at(kInstructionM);
      case kWarpN:
        return WarpColumns;
      case kWarpK:
        return Row::at(kTileK);
      case kInstructionM:
        return 16;
      case kInstructionN:
        return 8;
      case kInstructionK:
        return ArchOf<Row>::kMmaDepth;
      case kAlignC:
        return std::min(Row::at(kAlignC), WarpColumns / 4);
      default:
        return Row::at(column);
    }
  }
};

// The last layer's epilogue: CUTLASS's, staged through shared memory, with our steps as its
// visitor.
template <class Row, class Element, class Output, class Chain>
struct LastEpilogue {
  using Tile = Tile2x<Row, Element, Output, Chain>;
  // CUTLASS takes only its shapes, since further products are our own (mma/b2b/product.h).
  using Operand = cutlass::layout::RowMajorTensorOpMultiplicandCrosswise<16, 32>;
  using Weights = cutlass::layout::ColumnMajorTensorOpMultiplicandCrosswise<16, 32>;
  using WarpMma = typename cutlass::gemm::warp::DefaultMmaTensorOp<
      typename Tile::Warp, typename Tile::Instruction, Element, Operand, Element, Weights, float,
      cutlass::layout::RowMajor>::Type;
  // For half_t CUTLASS stages rows without bank conflicts, and computes wrong results if a warp has
  // more than 64 columns. Any other 16-bit type serves, since the visitor converts the values.
  using Staged =
      cutlass::platform::conditional_t<(Tile::Warp::kN > 64), cutlass::bfloat16_t, Element>;
  using OutputOp =
      cutlass::epilogue::thread::LinearCombination<Staged, Tile::kAccess, float, float>;
  using Default = typename cutlass::epilogue::threadblock::DefaultEpilogueTensorOp<
      typename Tile::Threadblock, WarpMma, 1, OutputOp, Tile::kAccess>::Epilogue;
  using Type = typename Tile::template Epilogue<Default>;
};

// MainLoop: of the first layer, a GEMM's or a convolution's (mma/b2b/main_loop.h).
//
// The instruction's columns of the configuration hold a warp's rows and its columns of the first
// layer. If these are all columns, a layer's result stays in the warp's registers, else it goes
// through shared memory.
template <template <class, class> class MainLoop, class Config, class ElementType, class OutputType,
          class... Chains>
struct Shape : ChainLayers<Config, Chains...> {
  using Layers = ChainLayers<Config, Chains...>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Layers::columns, Layers::depth, Layers::kLast, Layers::kLayers, Layers::vectors;

  static constexpr int kRows = Row::at(kTileM), kWarpRows = Row::at(kInstructionM),
                       kRowBlocks = kWarpRows / 16;
  static constexpr int kWarpsAlong = kRows / kWarpRows,
                       kWarpsAcross = columns(0) / Row::at(kInstructionN);
  static constexpr int kThreads = 32 * kWarpsAlong * kWarpsAcross;
  static constexpr bool kInRegisters = kWarpsAcross == 1;
  static constexpr int warp_columns(int layer) { return columns(layer) / kWarpsAcross; }

  static_assert(sizeof(Element) == 2, "accumulators lie as operands of 16 bits");
  static_assert(Layers::is_whole(16),
                "products are computed in blocks of 16 columns and 16 values along k");
  static_assert(kRows % kWarpRows == 0 && kWarpRows % 16 == 0 &&
                columns(0) % Row::at(kInstructionN) == 0);

  template <int L>
  using RowOf = LayerRow<Row, columns(L), warp_columns(L)>;
  using First = MainLoop<RowOf<0>, Element>;
  using Mma = typename First::Mma;
  using Epilogue = typename LastEpilogue<RowOf<kLast>, Element, Output,
                                         typename Layers::template ChainOf<kLast>>::Type;
  template <int L>
  using Sums = cutlass::Array<float, kWarpRows * warp_columns(L) /
                                         32>;  // sums of a thread, in the order of CUTLASS's warps

  // The distance of rows in shared memory is 16 bytes more than a multiple of 32, so that eight
  // rows meet all banks (ldmatrix).
  static constexpr int pitch(int columns) { return columns + 8; }

  // Shared memory: one space that layers use in turn, then all weights but the first layer's, then
  // vectors.
  static constexpr int widest(int layer = 0) {
    return layer == kLast ? 0 : std::max(columns(layer), widest(layer + 1));
  }
  static constexpr int kIntermediateBytes =
      kInRegisters ? 0 : kRows * pitch(widest()) * int(sizeof(Element));
  static constexpr int weight_bytes(int layer) {
    return layer == 0 ? 0 : columns(layer) * pitch(depth(layer)) * int(sizeof(Element));
  }
  static constexpr int kOffsetWeights =
      RoundUp(std::max({int(sizeof(typename Mma::SharedStorage)),
                        int(sizeof(typename Epilogue::SharedStorage)), kIntermediateBytes}),
              16);
  static constexpr int weight_offset(int layer) {
    return layer == 0 ? kOffsetWeights : weight_offset(layer - 1) + weight_bytes(layer - 1);
  }
  static constexpr int kOffsetVectors = weight_offset(kLayers);
  static constexpr int vector_offset(
      int layer) {  // in floats; the last layer's epilogue reads its own from global memory
    return layer == 0 ? 0 : vector_offset(layer - 1) + vectors(layer - 1) * columns(layer - 1);
  }
  static constexpr int kSharedMemory = kOffsetVectors + vector_offset(kLast) * int(sizeof(float));
};

// The block's shared memory.
template <class K>
struct Memory {
  char* base;

  template <class Storage>
  __device__ Storage& as() const {
    return *reinterpret_cast<Storage*>(base);
  }
  __device__ typename K::Element* intermediate() const {
    return reinterpret_cast<typename K::Element*>(base);
  }
  template <int L>
  __device__ typename K::Element* weights() const {
    constexpr int kOffset = K::weight_offset(L);
    return reinterpret_cast<typename K::Element*>(base + kOffset);
  }
  template <int L>
  __device__ float* vectors() const {
    constexpr int kOffset = K::kOffsetVectors + K::vector_offset(L) * int(sizeof(float));
    return reinterpret_cast<float*>(base + kOffset);
  }
};

}  // namespace b2b_2x
}  // namespace onnxbolt
