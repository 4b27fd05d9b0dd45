// The epilogue of a convolution whose result is each image's mean: y [n, k], what a global average pooling would make of [n, p, q, k]. The
// tile's blocks of 64 rows hold one image each, so that no sum leaves its warpgroup: lanes add up rows, then shared memory warps, always in
// the same order. Rows beyond an image's last pixel are left out.
#pragma once
#include <type_traits>

#include "sm90/epilogue.h"
#include "sm90/params.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kImageRows = 64;  // of the product, that an image has: those of one wgmma

// A chain in two parts: the steps of each value by itself, and whether Mean is behind them.
template <class Before, class... Steps>
struct SplitAtMean {
  using Pointwise = Before;
  static constexpr bool kMean = false;
};
template <class... Before>
struct SplitAtMean<epilogue::Chain<Before...>, epilogue::Mean> {
  using Pointwise = epilogue::Chain<Before...>;
  static constexpr bool kMean = true;
};
template <class... Before, class Step, class... Steps>
struct SplitAtMean<epilogue::Chain<Before...>, Step, Steps...> : SplitAtMean<epilogue::Chain<Before..., Step>, Steps...> {};

template <class Chain>
struct MeanOf;
template <class... Steps>
struct MeanOf<epilogue::Chain<Steps...>> : SplitAtMean<epilogue::Chain<>, Steps...> {};

// The means of a tile's images. `tile`: where it begins, and the rows that there are.
class MeanOutput {
 public:
  const int column;

  CUTLASS_DEVICE MeanOutput(const Params& params, const MatrixOutput& tile) : column(tile.column), params_(params), tile_(tile) {}

  CUTLASS_DEVICE bool holds_pixel(int tile_row) const { return (tile_.row + tile_row) % kImageRows < params_.plane_pixels; }

  // As MatrixOutput's: for operands that are read directly.
  CUTLASS_DEVICE int64_t pixel(int tile_row) const {
    const int row = tile_.row + tile_row;
    return holds_pixel(tile_row) && row < tile_.rows ? int64_t(row / kImageRows) * params_.plane_pixels + row % kImageRows : -1;
  }

  // Of the image whose rows begin at `tile_row`.
  template <class Output>
  CUTLASS_DEVICE void store(float sum, int tile_row, int tile_column) const {
    const int row = tile_.row + tile_row, at = column + tile_column;
    if (row < tile_.rows && at < params_.columns)
      static_cast<Output*>(params_.y)[row / kImageRows * params_.y_pitch + at] = Output(sum / params_.plane_pixels);
  }

 private:
  const Params& params_;
  const MatrixOutput& tile_;
};

// The interface of Epilogue, whose buffers and vectors these are.
template <class Shape>
class MeanEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column, int column_end, const MeanOutput& to) {
    char* buffer = this->memory_.staging + this->cursor_.stage * Shape::kUnitBytes;
    if constexpr (Shape::kResidual) this->acquire_buffer();
    float sums[kSums];
    sum_from<0>(values, sums, buffer, unit_row, unit_column, column_end, to);
    const int first = add_up<kSums, kLanesOfRow>(sums);
    __syncwarp();  // all of its lanes have read the residual
    keep(sums, first, buffer);
    SyncThreads(this->barrier_, 128);  // and no thread is still behind the unit before the last, which had this buffer
    if (this->thread_ < Shape::kUnitColumns) to.template store<Output>(whole(buffer), unit_row, unit_column + this->thread_);
    if constexpr (Shape::kResidual) release(this->memory_.residual_free[this->cursor_.stage]);
    this->cursor_.advance();
  }

 private:
  using Chain = typename Base::Chain;
  using Output = typename Base::Output;
  static constexpr int kSums = Shape::kUnitColumns / 4;  // columns of a thread in a unit, see Accumulators
  static constexpr int kLanesOfRow = 4;                  // of lanes, those with the same columns are that far apart

  // The unit's columns from `Column` on, up to 64 at a time, as in Epilogue.
  template <int Column>
  CUTLASS_DEVICE void sum_from(const float* values, float* sums, char* buffer, int unit_row, int unit_column, int column_end,
                               const MeanOutput& to) {
    constexpr int kLeft = Shape::kUnitColumns - Column, kColumns = kLeft >= 64 ? 64 : kLeft >= 32 ? 32 : kLeft >= 16 ? 16 : 8;
    sum_columns<kColumns>(values + Column / 2, sums + Column / 4, buffer, unit_row, unit_column, Column, column_end, to);
    if constexpr (kLeft > kColumns) sum_from<Column + kColumns>(values, sums, buffer, unit_row, unit_column, column_end, to);
  }

  // Of this thread's two rows.
  template <int Columns>
  CUTLASS_DEVICE void sum_columns(const float* values, float* sums, char* buffer, int unit_row, int unit_column, int column,
                                  int column_end, const MeanOutput& to) {
    constexpr int kCount = Columns / 2;
    typename Chain::template Operands<kCount> operands;
    cutlass::Array<float, kCount> x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = values[i];
    this->template read_vectors<kCount>(operands, unit_column + column);
    if constexpr (Shape::kResidual) operands.tensors[0] = this->template read_staged<Columns>(buffer, column);
    if constexpr (Chain::kTensors > Shape::kResidual)
      this->template read_tensors<kCount>(operands, unit_row, unit_column + column, column_end, to);
    x = Chain::template apply<Output>(x, operands, this->operands_.params);
    const bool upper = to.holds_pixel(unit_row + this->first_row()), lower = to.holds_pixel(unit_row + this->first_row() + 8);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      sums[i / 2] = (upper ? x[i] : 0.f) + (lower ? x[i + 2] : 0.f);
      sums[i / 2 + 1] = (upper ? x[i + 1] : 0.f) + (lower ? x[i + 3] : 0.f);
    }
  }

  // Over the lanes that have the same columns. With each step a lane goes on with one half of them, and leaves the other to its partner;
  // returns which of all `Count` the first one is then.
  template <int Count, int Distance>
  CUTLASS_DEVICE int add_up(float* sums) const {
    if constexpr (Distance == 32) {
      return 0;
    } else if constexpr (Count % 2 == 0) {
      constexpr int kHalf = Count / 2;
      const bool second = this->thread_ & Distance;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float received = __shfl_xor_sync(~0u, second ? sums[i] : sums[i + kHalf], Distance);
        sums[i] = (second ? sums[i + kHalf] : sums[i]) + received;
      }
      return (second ? kHalf : 0) + add_up<kHalf, 2 * Distance>(sums);
    } else {
#pragma unroll
      for (int i = 0; i < Count; ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], Distance);
      return add_up<Count, 2 * Distance>(sums);
    }
  }

  // How many columns a lane has in the end.
  template <int Count, int Distance>
  static constexpr int Left() {
    if constexpr (Distance == 32) return Count;
    else return Left<Count % 2 == 0 ? Count / 2 : Count, 2 * Distance>();
  }

  // A warp's sums lie where its rows of the residual were.
  CUTLASS_DEVICE static float* of_warp(char* buffer, int warp) {
    return reinterpret_cast<float*>(buffer + warp * kStoredRows * Shape::kRowBytes);
  }

  CUTLASS_DEVICE void keep(const float* sums, int first, char* buffer) const {
    float* of_columns = of_warp(buffer, this->warp_) + this->thread_ % kLanesOfRow * 2;
#pragma unroll
    for (int i = 0; i < Left<kSums, kLanesOfRow>(); ++i) of_columns[(first + i) / 2 * 8 + (first + i) % 2] = sums[i];
  }

  // The unit's sum of this thread's column.
  CUTLASS_DEVICE float whole(char* buffer) const {
    float sum = 0.f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warp(buffer, warp)[this->thread_];
    return sum;
  }

  // The next residual comes by TMA where this warp has read and written.
  CUTLASS_DEVICE void release(Barrier& free) const {
    FenceAsyncProxy();
    __syncwarp();
    if (this->thread_ % 32 == 0) free.arrive();
  }
};

}  // namespace sm90
}  // namespace onnxbolt
