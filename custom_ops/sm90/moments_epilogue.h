// Statistics of rows on their way from one product to the next: the norm between them is folded
// into the second one (docs/decisions/norms-in-products.md).
//
// How it works:
//
// 1. A product whose steps end in Moments writes the statistics of each row of its result, of the
//    values as they are stored, a part for each unit of the epilogue.
// 2. A product that begins with FoldedLayerNorm or FoldedRmsNorm reads those of its input's rows
//    before a tile's main loop, and combines the parts of each row. The first step of its epilogue
//    applies them to the accumulators.
//
// Constraints: elements have 2 bytes, and columns (of the input, of the result) are multiples of
// kPartColumns.
#pragma once
#include "sm90/consumer.h"
#include "sm90/moments.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

struct MomentsParams : Params {
  RowParts of_input;
  Moments* of_result;  // [parts of a row of the result, rows]
};

// The place where a tile is stored, and what the norm of the input does to its rows.
template <class Scales>
struct NormalizedOutput : MatrixOutput {
  const Scales& scales;

  CUTLASS_DEVICE NormalizedOutput(const MatrixOutput& tile, const Scales& scales)
      : MatrixOutput(tile), scales(scales) {}

  CUTLASS_DEVICE RowScale row_scale(int tile_row) const { return scales.of(tile_row); }
};

// Has the interface of Epilogue. Writes: the statistics of the result are an output.
template <class Shape, bool Writes>
class MomentsEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  CUTLASS_DEVICE void use(const MomentsParams& params) { params_ = &params; }

  // Reads the statistics of the input's rows from `first` on, the warpgroup's first one.
  CUTLASS_DEVICE void fetch_rows(int first) {
    if constexpr (Chain::kNormalizesInput)
      scales_.fetch(params_->of_input, first, this->operands_.params[0]);
  }

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const MatrixOutput& to) {
    const NormalizedOutput rows(to, scales_);
    if constexpr (Writes) {
      cutlass::Array<Output, Size> rounded;
      Base::finish_unit(values, unit_row, unit_column, column_end, rows,
                        reinterpret_cast<uint32_t*>(&rounded));
      if (to.column + unit_column < column_end)
        write(rounded, to.row + unit_row + this->first_row(), to.column + unit_column);
    } else {
      Base::finish_unit(values, unit_row, unit_column, column_end, rows);
    }
  }

 private:
  using Chain = typename Base::Chain;
  using Output = typename Base::Output;

  template <int Size>
  CUTLASS_DEVICE void write(const cutlass::Array<Output, Size>& rounded, int row,
                            int column) const {
    const auto values = cutlass::NumericArrayConverter<float, Output, Size>{}(rounded);
    const int rows = params_->rows;
    WriteMoments(reinterpret_cast<const float (&)[Size]>(values),
                 params_->of_result + int64_t(column / kPartColumns) * rows, row, rows);
  }

  const MomentsParams* params_;
  RowScales<Shape::kBlocks, Chain::First::kCenters> scales_;
};

// True for steps that read or write statistics of rows.
template <class Chain>
constexpr bool HasMoments =
    Chain::kNormalizesInput || epilogue::Without<epilogue::Moments, Chain>::kFound;

// A kernel whose steps begin with a norm of the input, or end in Moments, or both.
template <class Config, class ElementType, class OutputType, class ChainType>
struct MomentsShape
    : KernelShape<Config, ElementType, OutputType,
                  typename epilogue::Without<epilogue::Moments, ChainType>::Pointwise> {
  static constexpr bool kReads = ChainType::kNormalizesInput,
                        kWrites = epilogue::Without<epilogue::Moments, ChainType>::kFound;
  using Finish = typename MomentsShape::Finish;
  using Epilogue = MomentsEpilogue<Finish, kWrites>;

  static_assert(!MomentsShape::kSwapped && !MomentsShape::kNchw, "units are of the output's rows");
  static_assert(!kWrites || Finish::kUnitColumns == kPartColumns, "a unit is a part");
};

// The end of a tile for Consumer.
template <class K>
class MomentsTileEnd : public TileEnd<K> {
 public:
  using Params = MomentsParams;

  CUTLASS_DEVICE MomentsTileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : TileEnd<K>(params, memory, group, rank) {
    this->epilogue_.use(params);
  }

  CUTLASS_DEVICE void fetch(Origin tile) {
    TileEnd<K>::fetch(tile);
    this->epilogue_.fetch_rows(tile.row + first_row());
  }

 private:
  // The warpgroup's in a tile. It is computed each time, since a register for it would be spilled
  // beside the accumulators of three warpgroups.
  CUTLASS_DEVICE static int first_row() {
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // behind the producer's
    return K::kIsPingpong ? 0 : group * K::kGroupRows;
  }
};

}  // namespace sm90
}  // namespace onnxbolt
