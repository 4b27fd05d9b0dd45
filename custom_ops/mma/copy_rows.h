// Copies of matrices' rows from global to shared memory, with zeros for what lies outside.
#pragma once
#include <cstdint>

#include "cutlass/cutlass.h"
#include "mma/instructions.h"

namespace onnxbolt {
namespace mma {

// Bytes from one row to the next in shared memory: an odd number of units. So the 8 rows of a
// matrix lie in different banks, and offsets of rows and steps are constants of the instructions.
constexpr int RowPitch(int bytes) { return bytes + kUnit; }

// An asynchronous copy if Async, else a load and a store. Zeros unless
// `inside`; then nothing is read.
template <int Bytes, bool Async>
__device__ void Copy(char* to, const void* from, bool inside) {
  if constexpr (Async && Bytes >= 4) {
    CopyAsync<Bytes>(to, from, inside ? Bytes : 0);
  } else {
    using Access = cutlass::platform::conditional_t<
        Bytes == 16, uint4,
        cutlass::platform::conditional_t<
            Bytes == 8, uint2, cutlass::platform::conditional_t<Bytes == 4, uint32_t, uint16_t>>>;
    *reinterpret_cast<Access*>(to) = inside ? *static_cast<const Access*>(from) : Access{};
  }
}

// Rows of `Units` units of 16 bytes; a row has `columns` elements and `rows` are inside, of which
// row i begins at from(i). An access has Width elements. Called by all threads of the block.
template <class Element, int Threads, int Rows, int Units, int Width, bool Async, class From>
__device__ void CopyRows(char* to, const From& from, int rows, int columns) {
  constexpr int kOfUnit = kUnit / int(sizeof(Element)), kAccess = Width * int(sizeof(Element));
  constexpr int kRows = Threads / Units, kPasses = (Rows + kRows - 1) / kRows;
  static_assert(kRows > 0, "a row has a unit for each thread at most");
  const int unit = threadIdx.x % Units, first = threadIdx.x / Units;
  if (kRows * Units < Threads && first >= kRows) return;
  const int left = columns - unit * kOfUnit;  // elements of the unit that are inside
  to += first * RowPitch(Units * kUnit) + unit * kUnit;
  CUTLASS_PRAGMA_UNROLL
  for (int pass = 0; pass < kPasses; ++pass) {
    const int row = first + pass * kRows;
    if (kPasses * kRows > Rows && row >= Rows) return;
    const Element* begin = from(row) + unit * kOfUnit;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOfUnit; i += Width)
      Copy<kAccess, Async>(to + pass * kRows * RowPitch(Units * kUnit) + i * int(sizeof(Element)),
                           begin + i, row < rows && i < left);
  }
}

}  // namespace mma
}  // namespace onnxbolt
