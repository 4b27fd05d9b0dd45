// Sums along the rows of small matrices, for a few images at a time, by the threads of a block.
#pragma once
#include "cutlass/arch/memory_sm80.h"
#include "cutlass/array.h"
#include "squeeze_excite/plan.h"

namespace onnxbolt {
namespace squeeze_excite {

template <class T, int N>
using Access = cutlass::AlignedArray<T, N, (N * sizeof(T) < 16 ? N * sizeof(T) : 16)>;

// Sum over the lanes of a group of `lanes` neighbouring threads, a power of two up to 32. Whole warps call it.
__device__ inline float SumOverLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// How many threads share a row, where there are `rows` of `length` terms.
__device__ inline int LanesFor(int rows, int length) {
  int lanes = 1;
  while (2 * lanes <= 32 && 2 * lanes * rows <= int(blockDim.x) && lanes < length) lanes *= 2;
  return lanes;
}

// `function(image)` for each image, in code for every one of them, so that what it indexes stays in registers.
template <class Function>
__device__ void ForImages(int images, const Function& function) {
  CUTLASS_PRAGMA_UNROLL
  for (int image = 0; image < kMostImages; ++image) {
    if (image < images) function(image);
  }
}

// For every row < rows calls `term(row, i, sums)` for i < length, which adds to one sum for each image, and `finish(row, sums)` for the
// totals; groups of neighbouring threads share a row.
template <class Term, class Finish>
__device__ void ForRows(int rows, int length, const Term& term, const Finish& finish) {
  const int lanes = LanesFor(rows, length), lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
  for (int first = 0; first < rows; first += groups) {
    const int row = first + threadIdx.x / lanes;
    float sums[kMostImages] = {};
    for (int i = lane; row < rows && i < length; i += lanes) term(row, i, sums);
    CUTLASS_PRAGMA_UNROLL
    for (int image = 0; image < kMostImages; ++image) sums[image] = SumOverLanes(sums[image], lanes);
    if (row < rows && lane == 0) finish(row, sums);
  }
}

// Adds weights[i] values[image * pitch + i] over i < Width to each image's sum.
template <class Element, int Width>
__device__ void AddProducts(const Element* weights, const float* values, int pitch, int images, float (&sums)[kMostImages]) {
  const auto access = *reinterpret_cast<const Access<Element, Width>*>(weights);
  ForImages(images, [&](int image) {
    const auto factors = *reinterpret_cast<const Access<float, Width>*>(values + image * pitch);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) sums[image] += float(access[i]) * factors[i];
  });
}

// Begins a copy into shared memory; it is complete behind cutlass::arch::cp_async_wait. Before sm_80 it is complete at once.
template <class T>
__device__ void CopyToShared(T* to, const T* from) {
  if constexpr (sizeof(T) == 16) cutlass::arch::cp_async<16, cutlass::arch::CacheOperation::Global>(to, from);
  else if constexpr (sizeof(T) >= 4) cutlass::arch::cp_async<sizeof(T), cutlass::arch::CacheOperation::Always>(to, from);
  else *to = *from;
}

}  // namespace squeeze_excite
}  // namespace onnxbolt
