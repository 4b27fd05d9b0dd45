// Reads the operand of a rotation (Chain::kRotated): cos and sin of pairs of neighbouring columns.
#pragma once
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "runtime/kernel.h"

namespace onnxbolt {
namespace epilogue {

// The table's row for a row of the output.
template <class Element>
class RotationRow {
 public:
  __device__ RotationRow(const RotationArguments& rotation, int row)
      : row_(static_cast<const Element*>(rotation.table) +
             int64_t((unsigned(rotation.first) + unsigned(row)) % unsigned(rotation.rows)) *
                 rotation.width) {}

  // N values from column `place` of the table on: a power of two, `place` a multiple of it.
  template <int N>
  __device__ cutlass::Array<float, N> read(int place) const {
    using Access = cutlass::AlignedArray<Element, N>;
    return cutlass::NumericArrayConverter<float, Element, N>{}(
        *reinterpret_cast<const Access*>(row_ + place));
  }

 private:
  const Element* row_;
};

// The values for columns that are not rotated.
template <int N>
__device__ cutlass::Array<float, N> unrotated() {
  cutlass::Array<float, N> turns;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; ++i) turns[i] = i % 2 == 0 ? 1.f : 0.f;
  return turns;
}

}  // namespace epilogue
}  // namespace onnxbolt
