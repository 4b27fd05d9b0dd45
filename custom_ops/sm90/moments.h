// Statistics of rows: of values in accumulators, and combined from those of parts of a row.
//
// A part is kPartColumns columns of a row, and has their mean and the sum of squared differences
// from it. Parts lie as [parts of a row, rows], so that the rows of a warp are neighbours. All sums
// have a fixed order: the same bits come out in all blocks, and on every run.
#pragma once
#include "cutlass/cutlass.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kPartColumns = 64;
constexpr int kWarpRows = 16;  // rows of a warp in the 64 of a warpgroup's accumulators

// The statistics of some columns of a row: their mean, and the sum of squared differences from it.
struct Moments {
  float mean, squares;
};

// The sum over the four lanes that have a row; all of them get it.
CUTLASS_DEVICE float OverLanes(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// The statistics of 2 Count columns of a row, of which each of four lanes has a quarter in its
// accumulators: of a thread's first row, with `first` 0, or of the other one, with 2. All four
// lanes get the same. The mean is that of the values if Centered, else zero. Two passes, so that
// nothing cancels.
template <bool Centered, int Count>
CUTLASS_DEVICE Moments MomentsOf(const float (&values)[Count], int first) {
  constexpr int kColumns = 2 * Count;
  float mean = 0.f;
  if constexpr (Centered) {
    float sums[2] = {};
#pragma unroll
    for (int i = first; i < Count; i += 4) sums[0] += values[i], sums[1] += values[i + 1];
    mean = OverLanes(sums[0] + sums[1]) / kColumns;
  }
  float squares[2] = {};
#pragma unroll
  for (int i = first; i < Count; i += 4) {
    const float one = values[i] - mean, other = values[i + 1] - mean;
    squares[0] += one * one, squares[1] += other * other;
  }
  return {mean, OverLanes(squares[0] + squares[1])};
}

// Writes the statistics of a part's 64 rows of a warpgroup. `part`: the part of all `rows`, of
// which `row` is this thread's first one. Two of the four lanes of a row write: that row, and 8
// below.
template <int Count>
CUTLASS_DEVICE void WriteMoments(const float (&values)[Count], Moments* part, int row, int rows) {
  static_assert(2 * Count == kPartColumns, "the values are a part");
  const Moments upper = MomentsOf<true>(values, 0), lower = MomentsOf<true>(values, 2);
  const int turn = threadIdx.x % 4, own = row + 8 * turn;
  if (turn < 2 && own < rows) part[own] = turn == 0 ? upper : lower;
}

// The statistics of the rows of a matrix: `parts` is [count, rows].
struct RowParts {
  const Moments* parts;
  int count, rows;
};

// A norm's effect on the values of a row: (x - mean) scale.
struct RowScale {
  float mean, scale;
};

// Combines the parts of a row by Chan's formula, one behind the other. The mean does not count if
// not Centered. Several parts are loaded at once, since one load takes longer than their
// arithmetic.
template <bool Centered>
CUTLASS_DEVICE RowScale Combined(const RowParts& matrix, int row, float epsilon) {
  constexpr int kBatch = 16;
  float mean = 0.f, squares = 0.f;
  for (int first = 0; first < matrix.count; first += kBatch) {
    Moments batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      batch[i] = matrix.parts[int64_t(min(first + i, matrix.count - 1)) * matrix.rows + row];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= matrix.count) break;
      const float before = float(first + i), share = __fdividef(1.f, before + 1.f),
                  distance = batch[i].mean - mean;
      mean += distance * share;
      squares += batch[i].squares + distance * distance * (kPartColumns * before * share);
    }
  }
  const float mean_square = squares / float(matrix.count * kPartColumns);
  return {mean, rsqrtf(mean_square + (Centered ? 0.f : mean * mean) + epsilon)};
}

// A norm's effect on the 64 Blocks rows of a warpgroup. Each lane of a warp has combined one of
// the warp's rows; the lanes that need it get it by shuffles. Threads of a warpgroup make all
// calls.
template <int Blocks, bool Centered>
class RowScales {
  static_assert(Blocks <= 2, "a warp has a lane for each of its rows");

 public:
  // Reads the statistics of the rows from `first` on.
  CUTLASS_DEVICE void fetch(const RowParts& matrix, int first, float epsilon) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32,
              block = Blocks > 1 ? lane / kWarpRows : 0;
    const int row = first + block * 64 + warp * kWarpRows + lane % kWarpRows;
    own_ = Combined<Centered>(matrix, min(row, matrix.rows - 1), epsilon);
  }

  // The effect on a row of the calling warp.
  CUTLASS_DEVICE RowScale of(int row) const {
    const int lane = row / 64 * kWarpRows + row % kWarpRows;
    return {__shfl_sync(~0u, own_.mean, lane), __shfl_sync(~0u, own_.scale, lane)};
  }

 private:
  RowScale own_;
};

}  // namespace sm90
}  // namespace onnxbolt
