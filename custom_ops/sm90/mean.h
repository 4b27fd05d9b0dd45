// The epilogue of a convolution that averages images: y [n, k], as a global average pooling of [n,
// p, q, k] would give. A tile's 64-row blocks hold one image each, so that all values of a sum are
// in one warpgroup: lanes are added up first, then, through shared memory, warps, always in the
// same order. Rows beyond an image's last pixel are left out.
#pragma once
#include "sm90/epilogue.h"
#include "sm90/params.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kImageRows =
    64;  // rows of the product for each image: those of one wgmma instruction

// The place where the means of a tile's images are stored. `tile`: its first row and column, and
// the number of rows.
class MeanOutput {
 public:
  const int column;

  CUTLASS_DEVICE MeanOutput(const Params& params, const MatrixOutput& tile)
      : column(tile.column), params_(params), tile_(tile) {}

  CUTLASS_DEVICE bool holds_pixel(int tile_row) const {
    return (tile_.row + tile_row) % kImageRows < params_.plane_pixels;
  }

  // As MatrixOutput::pixel: for operands that threads read directly.
  CUTLASS_DEVICE int64_t pixel(int tile_row) const {
    const int row = tile_.row + tile_row;
    return holds_pixel(tile_row) && row < tile_.rows
               ? int64_t(row / kImageRows) * params_.plane_pixels + row % kImageRows
               : -1;
  }

  // The number of pixels of the image whose rows begin at `tile_row`.
  template <class Output>
  CUTLASS_DEVICE void store(float sum, int tile_row, int tile_column) const {
    const int row = tile_.row + tile_row, at = column + tile_column;
    if (row < tile_.rows && at < params_.columns)
      static_cast<Output*>(params_.y)[row / kImageRows * params_.y_pitch + at] =
          Output(sum / params_.plane_pixels);
  }

 private:
  const Params& params_;
  const MatrixOutput& tile_;
};

// Has the interface of Epilogue, and its buffers and vectors.
template <class Shape>
class MeanEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const MeanOutput& to) {
    char* buffer = this->memory_.staging + this->cursor_.stage * Shape::kUnitBytes;
    if constexpr (Shape::kResidual) this->acquire_buffer();
    float sums[kSums];
    this->for_each_part(values, buffer, unit_row, unit_column, column_end, to,
                        [&](const auto& x, const auto& operands, int column) {
                          const auto results = Base::Chain::template apply<Output>(
                              x, operands, this->operands_.params);
                          const bool upper = to.holds_pixel(unit_row + this->first_row()),
                                     lower = to.holds_pixel(unit_row + this->first_row() + 8);
#pragma unroll
                          for (int i = 0; i < int(results.size()); i += 4) {
                            sums[column / 4 + i / 2] =
                                (upper ? results[i] : 0.f) + (lower ? results[i + 2] : 0.f);
                            sums[column / 4 + i / 2 + 1] =
                                (upper ? results[i + 1] : 0.f) + (lower ? results[i + 3] : 0.f);
                          }
                        });
    const int first = add_up<kSums, kLanesOfRow>(sums);
    __syncwarp();  // until all lanes of the warp have read the residual
    keep(sums, first, buffer);
    SyncThreads(this->barrier_,
                128);  // until no thread reads the unit before the last, which had this buffer
    if (this->thread_ < Shape::kUnitColumns)
      to.template store<Output>(whole(buffer), unit_row, unit_column + this->thread_);
    if constexpr (Shape::kResidual) release(this->memory_.residual_free[this->cursor_.stage]);
    this->cursor_.advance();
  }

 private:
  using Output = typename Base::Output;
  static constexpr int kSums =
      Shape::kUnitColumns / 4;           // columns of a thread in a unit (see Accumulators)
  static constexpr int kLanesOfRow = 4;  // lanes with the same columns are this far apart

  // Adds up the lanes that have the same columns. In each step a lane keeps one half of its columns
  // and leaves the other half to its partner. Returns which of all `Count` columns its first one is
  // then.
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

  // The number of columns that a lane has in the end.
  template <int Count, int Distance>
  static constexpr int Left() {
    if constexpr (Distance == 32)
      return Count;
    else
      return Left<Count % 2 == 0 ? Count / 2 : Count, 2 * Distance>();
  }

  // A warp's sums take the place of its rows of the residual.
  CUTLASS_DEVICE static float* of_warp(char* buffer, int warp) {
    return reinterpret_cast<float*>(buffer + warp * kStoredRows * Shape::kRowBytes);
  }

  CUTLASS_DEVICE void keep(const float* sums, int first, char* buffer) const {
    float* of_columns = of_warp(buffer, this->warp_) + this->thread_ % kLanesOfRow * 2;
#pragma unroll
    for (int i = 0; i < Left<kSums, kLanesOfRow>(); ++i)
      of_columns[(first + i) / 2 * 8 + (first + i) % 2] = sums[i];
  }

  // The unit's sum for this thread's column.
  CUTLASS_DEVICE float whole(char* buffer) const {
    float sum = 0.f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warp(buffer, warp)[this->thread_];
    return sum;
  }

  // Frees the buffer: TMA brings the next residual where this warp has read and written.
  CUTLASS_DEVICE void release(Barrier& free) const {
    FenceAsyncProxy();
    __syncwarp();
    if (this->thread_ % 32 == 0) free.arrive();
  }
};

}  // namespace sm90
}  // namespace onnxbolt
