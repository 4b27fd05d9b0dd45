// wgmma with A in registers: pixels that a stem convolution gathers, or what one product left
// there, activated and converted, as the next product's operand. The accumulators of two
// neighbouring column blocks lie as the operand of one instruction wants its four registers (PTX
// ISA: "Register Fragments for wgmma.mma_async.m64nNk16"), so that a chain of layers moves nothing
// through shared memory.
#pragma once
#include <type_traits>

#include "sm90/wgmma.h"

namespace onnxbolt {
namespace sm90 {

// multiply<Element>(d, a, b, accumulate): d = a b^T for 16 values along K, plus d where
// `accumulate` is not 0; a: four registers, a lane's fragment of 64 x 16. multiply<Element, true>:
// d = a b, with b's rows along K (ValuesDescriptor).
template <int Columns>
struct WgmmaFromRegisters;

// The descriptor of b for multiply<Element, true>: 16 rows along K from `start` (in units of 16
// bytes) on. A row has `row_bytes` (128, 64 or 32) bytes of columns and is swizzled; `box_bytes`
// lie between these columns and the next ones.
CUTLASS_DEVICE uint64_t ValuesDescriptor(uint32_t start, int row_bytes, int box_bytes) {
  const uint64_t mode = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  const uint64_t box_stride = box_bytes / 16, group_stride = 8 * row_bytes / 16;
  return start | box_stride << 16 | group_stride << 32 | mode << 62;
}

#define ONNXBOLT_PRODUCT_FROM_REGISTERS(SHAPE, ROWS_ALONG_K, REGISTERS, A, B, ACCUMULATE, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE                                \
               ", 0;\nwgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS "}, {" A "}, %" #B   \
               ", p, 1, 1, " ROWS_ALONG_K ";\n}"                                               \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

#define ONNXBOLT_WGMMA_FROM_REGISTERS(COLUMNS, REGISTERS, A, B, ACCUMULATE, ...)                   \
  template <>                                                                                      \
  struct WgmmaFromRegisters<COLUMNS> {                                                             \
    template <class Element, bool RowsAlongK = false>                                              \
    __device__ static void multiply(Accumulators<COLUMNS>& d, const uint32_t* a, uint64_t b,       \
                                    int accumulate) {                                              \
      constexpr bool kHalf = std::is_same_v<Element, cutlass::half_t>;                             \
      if constexpr (kHalf && RowsAlongK)                                                           \
        ONNXBOLT_PRODUCT_FROM_REGISTERS("m64n" #COLUMNS "k16.f32.f16.f16", "1", REGISTERS, A, B,   \
                                        ACCUMULATE, __VA_ARGS__);                                  \
      else if constexpr (kHalf)                                                                    \
        ONNXBOLT_PRODUCT_FROM_REGISTERS("m64n" #COLUMNS "k16.f32.f16.f16", "0", REGISTERS, A, B,   \
                                        ACCUMULATE, __VA_ARGS__);                                  \
      else if constexpr (RowsAlongK)                                                               \
        ONNXBOLT_PRODUCT_FROM_REGISTERS("m64n" #COLUMNS "k16.f32.bf16.bf16", "1", REGISTERS, A, B, \
                                        ACCUMULATE, __VA_ARGS__);                                  \
      else                                                                                         \
        ONNXBOLT_PRODUCT_FROM_REGISTERS("m64n" #COLUMNS "k16.f32.bf16.bf16", "0", REGISTERS, A, B, \
                                        ACCUMULATE, __VA_ARGS__);                                  \
    }                                                                                              \
  }

ONNXBOLT_WGMMA_FROM_REGISTERS(8, "%0, %1, %2, %3", "%4, %5, %6, %7", 8, 9, ONNXBOLT_D4(0));
ONNXBOLT_WGMMA_FROM_REGISTERS(16, ONNXBOLT_REGISTERS_0, "%8, %9, %10, %11", 12, 13, ONNXBOLT_D8(0));
ONNXBOLT_WGMMA_FROM_REGISTERS(24, ONNXBOLT_REGISTERS_0 ", %8, %9, %10, %11", "%12, %13, %14, %15",
                              16, 17, ONNXBOLT_D8(0), ONNXBOLT_D4(8));
ONNXBOLT_WGMMA_FROM_REGISTERS(32, ONNXBOLT_FIRST_16, "%16, %17, %18, %19", 20, 21, ONNXBOLT_D16(0));
ONNXBOLT_WGMMA_FROM_REGISTERS(40, ONNXBOLT_FIRST_16 ", %16, %17, %18, %19", "%20, %21, %22, %23",
                              24, 25, ONNXBOLT_D16(0), ONNXBOLT_D4(16));
ONNXBOLT_WGMMA_FROM_REGISTERS(48, ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16,
                              "%24, %25, %26, %27", 28, 29, ONNXBOLT_D16(0), ONNXBOLT_D8(16));
ONNXBOLT_WGMMA_FROM_REGISTERS(64, ONNXBOLT_FIRST_32, "%32, %33, %34, %35", 36, 37, ONNXBOLT_D32(0));
ONNXBOLT_WGMMA_FROM_REGISTERS(72, ONNXBOLT_FIRST_32 ", %32, %33, %34, %35", "%36, %37, %38, %39",
                              40, 41, ONNXBOLT_D32(0), ONNXBOLT_D4(32));
ONNXBOLT_WGMMA_FROM_REGISTERS(80, ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32,
                              "%40, %41, %42, %43", 44, 45, ONNXBOLT_D32(0), ONNXBOLT_D8(32));
ONNXBOLT_WGMMA_FROM_REGISTERS(96, ONNXBOLT_FIRST_48, "%48, %49, %50, %51", 52, 53, ONNXBOLT_D32(0),
                              ONNXBOLT_D16(32));
ONNXBOLT_WGMMA_FROM_REGISTERS(112, ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48,
                              "%56, %57, %58, %59", 60, 61, ONNXBOLT_D32(0), ONNXBOLT_D16(32),
                              ONNXBOLT_D8(48));
ONNXBOLT_WGMMA_FROM_REGISTERS(128, ONNXBOLT_FIRST_64, "%64, %65, %66, %67", 68, 69,
                              ONNXBOLT_D64(0));
ONNXBOLT_WGMMA_FROM_REGISTERS(160, ONNXBOLT_FIRST_80, "%80, %81, %82, %83", 84, 85, ONNXBOLT_D64(0),
                              ONNXBOLT_D16(64));
ONNXBOLT_WGMMA_FROM_REGISTERS(192, ONNXBOLT_FIRST_96, "%96, %97, %98, %99", 100, 101,
                              ONNXBOLT_D64(0), ONNXBOLT_D32(64));
ONNXBOLT_WGMMA_FROM_REGISTERS(256, ONNXBOLT_FIRST_128, "%128, %129, %130, %131", 132, 133,
                              ONNXBOLT_D64(0), ONNXBOLT_D64(64));

}  // namespace sm90
}  // namespace onnxbolt
