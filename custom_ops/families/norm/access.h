// Accesses of the norms' kernels to memory, with hints to its caches.
#pragma once
#include <cstdint>

#include "cutlass/array.h"

namespace onnxbolt {
namespace norm {

// Hints to the caches (Caching in onnxbolt/families/norm/).
enum Caching { kUsual = 0, kPastL1 = 1, kEvictedFirst = 2 };

// Not through the read-only cache: with a dependent launch x is written while this kernel runs.
template <int Hint, class Access>
__device__ Access Load(const Access* from) {
  if constexpr (Hint == kUsual || sizeof(Access) != 16) {
    return *from;
  } else {
    uint4 bits;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(from));
    return reinterpret_cast<const Access&>(bits);
  }
}

template <int Hint, class Access>
__device__ void Store(Access* to, const Access& value) {
  if constexpr (Hint != kEvictedFirst || sizeof(Access) != 16) {
    *to = value;
  } else {
    __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(value));
  }
}

}  // namespace norm
}  // namespace onnxbolt
