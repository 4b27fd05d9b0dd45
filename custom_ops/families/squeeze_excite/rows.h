// Sums along the rows of small matrices, by all threads of a block. Their order depends on the
// shapes alone.
#pragma once
#include "cutlass/array.h"
#include "families/squeeze_excite/plan.h"

namespace onnxbolt {
namespace squeeze_excite {

constexpr int kRows =
    4;  // rows that a group of threads multiplies at a time: they share a load of the factors

template <class T, int N>
using Access = cutlass::AlignedArray<T, N, (N * sizeof(T) < 16 ? N * sizeof(T) : 16)>;

// Sum over the lanes of a group of `lanes` neighbouring threads, a power of two up to 32. Whole
// warps call it.
__device__ inline float SumOverLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// The sums of N values each over a group of at least N lanes, both powers of two: lane l has that
// of value l / (lanes / N). Each step halves the values that a lane still has to do with, so that
// this takes fewer exchanges than N sums.
template <int N>
__device__ float SumEachOverLanes(float (&values)[N], int lanes, int lane) {
  int distance = lanes / 2;
  CUTLASS_PRAGMA_UNROLL
  for (int half = N / 2; half > 0; half /= 2, distance /= 2) {
    const bool upper = lane & distance;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? values[i + half] : values[i],
                  sent = upper ? values[i] : values[i + half];
      values[i] = kept + __shfl_xor_sync(~0u, sent, distance);
    }
  }
  return SumOverLanes(values[0], lanes / N);
}

// The sum over i < length of term(row, i), as finish(row, sum), for every row < rows. Groups of
// neighbouring threads share a row.
template <class Term, class Finish>
__device__ void SumRows(int rows, int length, const Term& term, const Finish& finish) {
  int lanes = 1;
  while (2 * lanes <= 32 && 2 * lanes * rows <= int(blockDim.x) && lanes < length) lanes *= 2;
  const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
  for (int first = 0; first < rows; first += groups) {
    const int row = first + threadIdx.x / lanes;
    float sum = 0.f;
    for (int i = lane; row < rows && i < length; i += lanes) sum += term(row, i);
    sum = SumOverLanes(sum, lanes);
    if (row < rows && lane == 0) finish(row, sum);
  }
}

// A matrix of rows of `vectors` x Width elements.
template <class Element, int Width>
struct Matrix {
  const Element* elements;
  int64_t pitch;
  int rows, vectors;

  // Vectors of kRows rows; zeros behind the last one.
  __device__ void load(int row, int vector, Access<Element, Width> (&access)[kRows]) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      access[i].clear();
      if (row + i < rows)
        access[i] = *reinterpret_cast<const Access<Element, Width>*>(elements + (row + i) * pitch +
                                                                     vector * Width);
    }
  }
};

// finish(row, image, sum) for the product of every row with each image's factors, which are `pitch`
// floats apart. Neighbouring threads read neighbouring elements of a row.
template <class Element, int Width, class Finish>
__device__ void Multiply(const Matrix<Element, Width>& matrix, const float* factors, int pitch,
                         int images, const Finish& finish) {
  constexpr int kSums = kRows * kMostImages;
  int lanes = kSums;
  while (lanes < 32 && lanes < matrix.vectors) lanes *= 2;
  const int lane = threadIdx.x % lanes, step = blockDim.x / lanes * kRows;
  for (int first = 0; first < matrix.rows; first += step) {
    const int row = first + threadIdx.x / lanes * kRows;
    float sums[kSums] = {};
    for (int vector = lane; vector < matrix.vectors; vector += lanes) {
      Access<Element, Width> access[kRows];
      matrix.load(row, vector, access);
      CUTLASS_PRAGMA_UNROLL
      for (int image = 0; image < kMostImages; ++image) {
        if (image >= images) break;
        const auto factor = *reinterpret_cast<const Access<float, Width>*>(factors + image * pitch +
                                                                           vector * Width);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRows * Width; ++i) {
          sums[i / Width * kMostImages + image] +=
              float(access[i / Width][i % Width]) * factor[i % Width];
        }
      }
    }
    const float sum = SumEachOverLanes(sums, lanes, lane);
    const int share = lanes / kSums, index = lane / share, image = index % kMostImages;
    if (lane % share == 0 && row + index / kMostImages < matrix.rows && image < images)
      finish(row + index / kMostImages, image, sum);
  }
}

}  // namespace squeeze_excite
}  // namespace onnxbolt
