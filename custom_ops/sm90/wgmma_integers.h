// wgmma of 8-bit integers, whose sums are int32: a row's int8 or uint8 by int8.
#pragma once
#include "sm90/wgmma.h"

namespace onnxbolt {
namespace sm90 {

// multiply<Element>(d, a, b, accumulate): d = a b^T, plus d where `accumulate` is not 0; b is int8.
template <int Columns>
struct WgmmaOfIntegers;

#define ONNXBOLT_I4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define ONNXBOLT_I8(i) ONNXBOLT_I4(i), ONNXBOLT_I4(i + 4)
#define ONNXBOLT_I16(i) ONNXBOLT_I8(i), ONNXBOLT_I8(i + 8)
#define ONNXBOLT_I32(i) ONNXBOLT_I16(i), ONNXBOLT_I16(i + 16)
#define ONNXBOLT_I64(i) ONNXBOLT_I32(i), ONNXBOLT_I32(i + 32)

#define ONNXBOLT_INTEGER_PRODUCT(SHAPE, REGISTERS, A, B, ACCUMULATE, ...)                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE                              \
               ", 0;\nwgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS "}, %" #A ", %" #B \
               ", p;\n}"                                                                     \
               : __VA_ARGS__                                                                 \
               : "l"(a), "l"(b), "r"(accumulate))

#define ONNXBOLT_WGMMA_OF_INTEGERS(COLUMNS, REGISTERS, A, B, ACCUMULATE, ...)                      \
  template <>                                                                                      \
  struct WgmmaOfIntegers<COLUMNS> {                                                                \
    template <class Element>                                                                       \
    CUTLASS_DEVICE static void multiply(Accumulators<COLUMNS, int32_t>& d, uint64_t a, uint64_t b, \
                                        int accumulate) {                                          \
      if constexpr (std::is_same_v<Element, uint8_t>)                                              \
        ONNXBOLT_INTEGER_PRODUCT("m64n" #COLUMNS "k32.s32.u8.s8", REGISTERS, A, B, ACCUMULATE,     \
                                 __VA_ARGS__);                                                     \
      else                                                                                         \
        ONNXBOLT_INTEGER_PRODUCT("m64n" #COLUMNS "k32.s32.s8.s8", REGISTERS, A, B, ACCUMULATE,     \
                                 __VA_ARGS__);                                                     \
    }                                                                                              \
  }

ONNXBOLT_WGMMA_OF_INTEGERS(8, "%0, %1, %2, %3", 4, 5, 6, ONNXBOLT_I4(0));
ONNXBOLT_WGMMA_OF_INTEGERS(16, ONNXBOLT_REGISTERS_0, 8, 9, 10, ONNXBOLT_I8(0));
ONNXBOLT_WGMMA_OF_INTEGERS(24, ONNXBOLT_REGISTERS_0 ", %8, %9, %10, %11", 12, 13, 14,
                           ONNXBOLT_I8(0), ONNXBOLT_I4(8));
ONNXBOLT_WGMMA_OF_INTEGERS(32, ONNXBOLT_FIRST_16, 16, 17, 18, ONNXBOLT_I16(0));
ONNXBOLT_WGMMA_OF_INTEGERS(48, ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16, 24, 25, 26,
                           ONNXBOLT_I16(0), ONNXBOLT_I8(16));
ONNXBOLT_WGMMA_OF_INTEGERS(64, ONNXBOLT_FIRST_32, 32, 33, 34, ONNXBOLT_I32(0));
ONNXBOLT_WGMMA_OF_INTEGERS(80, ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32, 40, 41, 42,
                           ONNXBOLT_I32(0), ONNXBOLT_I8(32));
ONNXBOLT_WGMMA_OF_INTEGERS(96, ONNXBOLT_FIRST_48, 48, 49, 50, ONNXBOLT_I32(0), ONNXBOLT_I16(32));
ONNXBOLT_WGMMA_OF_INTEGERS(112, ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48, 56, 57, 58,
                           ONNXBOLT_I32(0), ONNXBOLT_I16(32), ONNXBOLT_I8(48));
ONNXBOLT_WGMMA_OF_INTEGERS(128, ONNXBOLT_FIRST_64, 64, 65, 66, ONNXBOLT_I64(0));
ONNXBOLT_WGMMA_OF_INTEGERS(144, ONNXBOLT_FIRST_64 ", " ONNXBOLT_REGISTERS_64, 72, 73, 74,
                           ONNXBOLT_I64(0), ONNXBOLT_I8(64));
ONNXBOLT_WGMMA_OF_INTEGERS(160, ONNXBOLT_FIRST_80, 80, 81, 82, ONNXBOLT_I64(0), ONNXBOLT_I16(64));
ONNXBOLT_WGMMA_OF_INTEGERS(176, ONNXBOLT_FIRST_80 ", " ONNXBOLT_REGISTERS_80, 88, 89, 90,
                           ONNXBOLT_I64(0), ONNXBOLT_I16(64), ONNXBOLT_I8(80));
ONNXBOLT_WGMMA_OF_INTEGERS(192, ONNXBOLT_FIRST_96, 96, 97, 98, ONNXBOLT_I64(0), ONNXBOLT_I32(64));
ONNXBOLT_WGMMA_OF_INTEGERS(208, ONNXBOLT_FIRST_96 ", " ONNXBOLT_REGISTERS_96, 104, 105, 106,
                           ONNXBOLT_I64(0), ONNXBOLT_I32(64), ONNXBOLT_I8(96));
ONNXBOLT_WGMMA_OF_INTEGERS(224, ONNXBOLT_FIRST_112, 112, 113, 114, ONNXBOLT_I64(0),
                           ONNXBOLT_I32(64), ONNXBOLT_I16(96));
ONNXBOLT_WGMMA_OF_INTEGERS(240, ONNXBOLT_FIRST_112 ", " ONNXBOLT_REGISTERS_112, 120, 121, 122,
                           ONNXBOLT_I64(0), ONNXBOLT_I32(64), ONNXBOLT_I16(96), ONNXBOLT_I8(112));
ONNXBOLT_WGMMA_OF_INTEGERS(256, ONNXBOLT_FIRST_128, 128, 129, 130, ONNXBOLT_I64(0),
                           ONNXBOLT_I64(64));

template <class Element, int Columns>
using WgmmaOf = std::conditional_t<std::is_same_v<SumOf<Element>, float>, Wgmma<Columns>,
                                   WgmmaOfIntegers<Columns>>;

}  // namespace sm90
}  // namespace onnxbolt
