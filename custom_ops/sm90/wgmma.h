// wgmma: a warpgroup multiplies 64 rows of A by Columns rows of B, both in swizzled shared memory,
// into fp32 registers (PTX ISA: wgmma.mma_async; "Asynchronous Warpgroup Level Matrix Shared Memory
// Layout").
//
// Written in PTX, not with CuTe, whose headers for these instructions take longer to parse than a
// kernel takes to compile.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cutlass/numeric_types.h"
#include "sm90/barrier.h"

namespace onnxbolt {
namespace sm90 {

// Bytes of a row that one instruction multiplies.
template <class Element>
constexpr int kInstructionK = 32 / static_cast<int>(sizeof(Element));

// The descriptor of an operand in shared memory: rows of `row_bytes` (128, 64 or 32) bytes along k,
// swizzled in groups of eight rows; groups are `group_pitch` rows apart. `start`: its address in
// units of 16 bytes. The swizzle is a function of the address, so that the operand may begin at any
// row.
CUTLASS_DEVICE uint64_t OperandDescriptor(uint32_t start, int row_bytes, int group_pitch) {
  const uint64_t mode = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  const uint64_t group_stride = group_pitch * row_bytes / 16;
  constexpr uint64_t kUnusedStride =
      1;  // stride along k: unused, since a swizzled row is one column
  return start | kUnusedStride << 16 | group_stride << 32 | mode << 62;
}

// The same for rows without gaps.
CUTLASS_DEVICE uint64_t OperandDescriptor(const void* rows, int row_bytes) {
  return OperandDescriptor(SharedAddress(rows) >> 4 & 0x3fff, row_bytes, 8);
}

// Orders earlier accesses to the accumulators before the next products.
CUTLASS_DEVICE void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes one group of the products since the last commit.
CUTLASS_DEVICE void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `Groups` groups are under way.
template <int Groups>
CUTLASS_DEVICE void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}

// The type of a product's sums: products of 8-bit integers are added up in integers.
template <class Element>
using SumOf =
    std::conditional_t<sizeof(Element) == 1 && std::is_integral_v<Element>, int32_t, float>;

// Accumulators of 64 rows x Columns. Lane l of warp w has, for i = 0, 1, .., the rows 16 w + l / 4
// and 8 below, columns 8 i + 2 (l % 4) and the next: d[4 i], d[4 i + 1] of the first row, d[4 i +
// 2], d[4 i + 3] of the other.
template <int Columns, class Sum = float>
using Accumulators = Sum[Columns / 2];

// Keeps the compiler from moving uses of accumulators before the wait that completes them.
template <int Size>
CUTLASS_DEVICE void PinAccumulators(float (&d)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int Size>
CUTLASS_DEVICE void PinAccumulators(int32_t (&d)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// multiply<Element>(d, a, b, accumulate): d = a b^T, plus d where `accumulate` is not 0.
template <int Columns>
struct Wgmma;

#define ONNXBOLT_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ONNXBOLT_REGISTERS_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define ONNXBOLT_REGISTERS_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define ONNXBOLT_REGISTERS_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define ONNXBOLT_REGISTERS_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define ONNXBOLT_REGISTERS_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define ONNXBOLT_REGISTERS_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define ONNXBOLT_REGISTERS_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define ONNXBOLT_REGISTERS_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define ONNXBOLT_REGISTERS_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define ONNXBOLT_REGISTERS_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define ONNXBOLT_REGISTERS_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define ONNXBOLT_REGISTERS_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define ONNXBOLT_REGISTERS_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define ONNXBOLT_REGISTERS_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define ONNXBOLT_REGISTERS_120 "%120, %121, %122, %123, %124, %125, %126, %127"

#define ONNXBOLT_FIRST_16 ONNXBOLT_REGISTERS_0 ", " ONNXBOLT_REGISTERS_8
#define ONNXBOLT_FIRST_32 ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16 ", " ONNXBOLT_REGISTERS_24
#define ONNXBOLT_FIRST_48 ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32 ", " ONNXBOLT_REGISTERS_40
#define ONNXBOLT_FIRST_64 ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48 ", " ONNXBOLT_REGISTERS_56
#define ONNXBOLT_FIRST_80 ONNXBOLT_FIRST_64 ", " ONNXBOLT_REGISTERS_64 ", " ONNXBOLT_REGISTERS_72
#define ONNXBOLT_FIRST_96 ONNXBOLT_FIRST_80 ", " ONNXBOLT_REGISTERS_80 ", " ONNXBOLT_REGISTERS_88
#define ONNXBOLT_FIRST_112 ONNXBOLT_FIRST_96 ", " ONNXBOLT_REGISTERS_96 ", " ONNXBOLT_REGISTERS_104
#define ONNXBOLT_FIRST_128 \
  ONNXBOLT_FIRST_112 ", " ONNXBOLT_REGISTERS_112 ", " ONNXBOLT_REGISTERS_120

#define ONNXBOLT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ONNXBOLT_D8(i) ONNXBOLT_D4(i), ONNXBOLT_D4(i + 4)
#define ONNXBOLT_D16(i) ONNXBOLT_D8(i), ONNXBOLT_D8(i + 8)
#define ONNXBOLT_D32(i) ONNXBOLT_D16(i), ONNXBOLT_D16(i + 16)
#define ONNXBOLT_D64(i) ONNXBOLT_D32(i), ONNXBOLT_D32(i + 32)

#define ONNXBOLT_PRODUCT(SHAPE, TRANSPOSE, REGISTERS, A, B, ACCUMULATE, ...)                 \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE                              \
               ", 0;\nwgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS "}, %" #A ", %" #B \
               ", p, 1, 1" TRANSPOSE ";\n}"                                                  \
               : __VA_ARGS__                                                                 \
               : "l"(a), "l"(b), "r"(accumulate))

// A, B, ACCUMULATE: the operands' numbers, which follow those of the registers.
#define ONNXBOLT_WGMMA(COLUMNS, REGISTERS, A, B, ACCUMULATE, ...)                                  \
  template <>                                                                                      \
  struct Wgmma<COLUMNS> {                                                                          \
    template <class Element>                                                                       \
    CUTLASS_DEVICE static void multiply(Accumulators<COLUMNS>& d, uint64_t a, uint64_t b,          \
                                        int accumulate) {                                          \
      if constexpr (std::is_same_v<Element, cutlass::half_t>)                                      \
        ONNXBOLT_PRODUCT("m64n" #COLUMNS "k16.f32.f16.f16", ", 0, 0", REGISTERS, A, B, ACCUMULATE, \
                         __VA_ARGS__);                                                             \
      else if constexpr (std::is_same_v<Element, cutlass::bfloat16_t>)                             \
        ONNXBOLT_PRODUCT("m64n" #COLUMNS "k16.f32.bf16.bf16", ", 0, 0", REGISTERS, A, B,           \
                         ACCUMULATE, __VA_ARGS__);                                                 \
      else if constexpr (std::is_same_v<Element, cutlass::float_e4m3_t>)                           \
        ONNXBOLT_PRODUCT("m64n" #COLUMNS "k32.f32.e4m3.e4m3", "", REGISTERS, A, B, ACCUMULATE,     \
                         __VA_ARGS__);                                                             \
      else                                                                                         \
        ONNXBOLT_PRODUCT("m64n" #COLUMNS "k8.f32.tf32.tf32", "", REGISTERS, A, B, ACCUMULATE,      \
                         __VA_ARGS__);                                                             \
    }                                                                                              \
  }

ONNXBOLT_WGMMA(8, "%0, %1, %2, %3", 4, 5, 6, ONNXBOLT_D4(0));
ONNXBOLT_WGMMA(16, ONNXBOLT_REGISTERS_0, 8, 9, 10, ONNXBOLT_D8(0));
ONNXBOLT_WGMMA(24, ONNXBOLT_REGISTERS_0 ", %8, %9, %10, %11", 12, 13, 14, ONNXBOLT_D8(0),
               ONNXBOLT_D4(8));
ONNXBOLT_WGMMA(32, ONNXBOLT_FIRST_16, 16, 17, 18, ONNXBOLT_D16(0));
ONNXBOLT_WGMMA(40, ONNXBOLT_FIRST_16 ", %16, %17, %18, %19", 20, 21, 22, ONNXBOLT_D16(0),
               ONNXBOLT_D4(16));
ONNXBOLT_WGMMA(48, ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16, 24, 25, 26, ONNXBOLT_D16(0),
               ONNXBOLT_D8(16));
ONNXBOLT_WGMMA(56, ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16 ", %24, %25, %26, %27", 28, 29, 30,
               ONNXBOLT_D16(0), ONNXBOLT_D8(16), ONNXBOLT_D4(24));
ONNXBOLT_WGMMA(64, ONNXBOLT_FIRST_32, 32, 33, 34, ONNXBOLT_D32(0));
ONNXBOLT_WGMMA(72, ONNXBOLT_FIRST_32 ", %32, %33, %34, %35", 36, 37, 38, ONNXBOLT_D32(0),
               ONNXBOLT_D4(32));
ONNXBOLT_WGMMA(80, ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32, 40, 41, 42, ONNXBOLT_D32(0),
               ONNXBOLT_D8(32));
ONNXBOLT_WGMMA(88, ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32 ", %40, %41, %42, %43", 44, 45, 46,
               ONNXBOLT_D32(0), ONNXBOLT_D8(32), ONNXBOLT_D4(40));
ONNXBOLT_WGMMA(96, ONNXBOLT_FIRST_48, 48, 49, 50, ONNXBOLT_D32(0), ONNXBOLT_D16(32));
ONNXBOLT_WGMMA(104, ONNXBOLT_FIRST_48 ", %48, %49, %50, %51", 52, 53, 54, ONNXBOLT_D32(0),
               ONNXBOLT_D16(32), ONNXBOLT_D4(48));
ONNXBOLT_WGMMA(112, ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48, 56, 57, 58, ONNXBOLT_D32(0),
               ONNXBOLT_D16(32), ONNXBOLT_D8(48));
ONNXBOLT_WGMMA(120, ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48 ", %56, %57, %58, %59", 60, 61, 62,
               ONNXBOLT_D32(0), ONNXBOLT_D16(32), ONNXBOLT_D8(48), ONNXBOLT_D4(56));
ONNXBOLT_WGMMA(128, ONNXBOLT_FIRST_64, 64, 65, 66, ONNXBOLT_D64(0));
ONNXBOLT_WGMMA(144, ONNXBOLT_FIRST_64 ", " ONNXBOLT_REGISTERS_64, 72, 73, 74, ONNXBOLT_D64(0),
               ONNXBOLT_D8(64));
ONNXBOLT_WGMMA(160, ONNXBOLT_FIRST_80, 80, 81, 82, ONNXBOLT_D64(0), ONNXBOLT_D16(64));
ONNXBOLT_WGMMA(176, ONNXBOLT_FIRST_80 ", " ONNXBOLT_REGISTERS_80, 88, 89, 90, ONNXBOLT_D64(0),
               ONNXBOLT_D16(64), ONNXBOLT_D8(80));
ONNXBOLT_WGMMA(192, ONNXBOLT_FIRST_96, 96, 97, 98, ONNXBOLT_D64(0), ONNXBOLT_D32(64));
ONNXBOLT_WGMMA(208, ONNXBOLT_FIRST_96 ", " ONNXBOLT_REGISTERS_96, 104, 105, 106, ONNXBOLT_D64(0),
               ONNXBOLT_D32(64), ONNXBOLT_D8(96));
ONNXBOLT_WGMMA(224, ONNXBOLT_FIRST_112, 112, 113, 114, ONNXBOLT_D64(0), ONNXBOLT_D32(64),
               ONNXBOLT_D16(96));
ONNXBOLT_WGMMA(240, ONNXBOLT_FIRST_112 ", " ONNXBOLT_REGISTERS_112, 120, 121, 122, ONNXBOLT_D64(0),
               ONNXBOLT_D32(64), ONNXBOLT_D16(96), ONNXBOLT_D8(112));
ONNXBOLT_WGMMA(256, ONNXBOLT_FIRST_128, 128, 129, 130, ONNXBOLT_D64(0), ONNXBOLT_D64(64));

}  // namespace sm90
}  // namespace onnxbolt
