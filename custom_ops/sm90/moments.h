// Statistics of rows: of values in accumulators, and combined from those of parts of a row.
//
// A part is kPartColumns columns of a row, and has their mean and the sum of squared differences
// from it. Parts lie as [parts of a row, rows], so that the rows of a warp are neighbours. All sums
// have a fixed order: the same bits come out in all blocks, and on every run.
#pragma once
#include "cutlass/cutlass.h"
#include "runtime/declarations.h"

namespace onnxbolt {
namespace sm90 {

// The statistics of some columns of a row: their mean, and the sum of squared differences from it.
struct alignas(8) Moments {
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
struct alignas(8) RowScale {
  float mean, scale;
};

// The statistics of the first `count` of several parts of a row, by Chan's formula.
template <int Parts>
CUTLASS_DEVICE Moments Combined(const Moments (&parts)[Parts], int count) {
  float mean = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < Parts; ++i) mean += i < count ? parts[i].mean : 0.f;
  mean = __fdividef(mean, float(count));
#pragma unroll
  for (int i = 0; i < Parts; ++i) {
    const float distance = parts[i].mean - mean;
    squares += i < count ? parts[i].squares + kPartColumns * distance * distance : 0.f;
  }
  return {mean, squares};
}

// Combines the parts of a row, some of them at a time, since one load takes longer than their
// arithmetic. The mean does not count if not Centered.
template <bool Centered>
CUTLASS_DEVICE RowScale Combined(const RowParts& matrix, int row, float epsilon) {
  constexpr int kBatch = 12;  // more would spill registers of the threads that combine
  float mean = 0.f, squares = 0.f;
#pragma unroll 1
  for (int first = 0; first < matrix.count; first += kBatch) {
    Moments parts[kBatch];
    const Moments* part = matrix.parts + int64_t(first) * matrix.rows + row;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      parts[i] = *part;
      if (first + i + 1 < matrix.count) part += matrix.rows;
    }
    const int count = min(matrix.count - first, kBatch);
    const Moments next = Combined(parts, count);
    const float share = __fdividef(float(count), float(first + count)), distance = next.mean - mean;
    mean += distance * share;
    squares += next.squares + distance * distance * (float(kPartColumns * first) * share);
  }
  const float mean_square = squares / float(matrix.count * kPartColumns);
  return {mean, rsqrtf(mean_square + (Centered ? 0.f : mean * mean) + epsilon)};
}

// Combines the statistics of `Rows` rows from `first` on. `thread`: of 64, each of which makes the
// call.
template <int Rows, bool Centered>
CUTLASS_DEVICE void CombineRows(const RowParts& matrix, int first, float epsilon, int thread,
                                RowScale* scales) {
#pragma unroll 1  // few registers are left to these threads
  for (int row = thread; row < Rows; row += 64)
    scales[row] = Combined<Centered>(matrix, min(first + row, matrix.rows - 1), epsilon);
}

}  // namespace sm90
}  // namespace onnxbolt
