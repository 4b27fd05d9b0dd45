// The instructions of kernels that multiply by mma.sync: fragments from shared memory, products,
// asynchronous copies. tests/custom_ops/host/emulated/ has the same functions for the host.
//
// An operand's step along the summed dimension is 32 bytes for every element type: two of the 8x8
// matrices of ldmatrix, whose rows have 16 bytes. So fp16, bf16 and TF32 read alike.
#pragma once
#include <cstdint>

#include "cutlass/arch/mma.h"
#include "cutlass/gemm/gemm.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"

namespace onnxbolt {
namespace mma {

constexpr int kWarp = 32;
constexpr int kUnit = 16;  // bytes of a row of an 8x8 matrix
constexpr int kStep = 32;  // bytes of a step along the summed dimension

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8x8 matrices; lanes 8 i to 8 i + 7 name the rows of matrix i. A lane gets the 4 bytes at
// column lane % 4 of row lane / 4 of each.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// The same of the transposed matrices of 16-bit elements.
__device__ inline void LoadTransposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

__device__ inline uint32_t LoadWord(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

// The nearest TF32 number of an fp32 number.
__device__ inline uint32_t RoundToTf32(uint32_t number) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(number) : "f"(__uint_as_float(number)));
  return number;
}

// Two values in one register, the first one in its lower half.
template <class Element>
__device__ uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (cutlass::platform::is_same<Element, cutlass::bfloat16_t>::value) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    const __half2 halves = __floats2half2_rn(low, high);
    packed = reinterpret_cast<const uint32_t&>(halves);
  }
  return packed;
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sums[16, 8] += a[16, step] b[8, step]^T. Depth: elements along k of the architecture's
// instruction; on sm_75 that is half a step.
template <class Element, int Depth>
__device__ void Multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using Factor =
      cutlass::platform::conditional_t<sizeof(Element) == 4, cutlass::tfloat32_t, Element>;
  using Instruction =
      cutlass::arch::Mma<cutlass::gemm::GemmShape<16, 8, Depth>, kWarp, Factor,
                         cutlass::layout::RowMajor, Factor, cutlass::layout::ColumnMajor, float,
                         cutlass::layout::RowMajor, cutlass::arch::OpMultiplyAdd>;
  using A = typename Instruction::FragmentA;
  using B = typename Instruction::FragmentB;
  auto& d = reinterpret_cast<typename Instruction::FragmentC&>(sums);
  if constexpr (Depth * sizeof(Element) == kStep) {
    const uint32_t b[2] = {b0, b1};
    Instruction()(d, reinterpret_cast<const A&>(a), reinterpret_cast<const B&>(b), d);
  } else {
    static_assert(2 * Depth * sizeof(Element) == kStep, "a step is one instruction, or two");
    Instruction()(d, reinterpret_cast<const A&>(a[0]), reinterpret_cast<const B&>(b0), d);
    Instruction()(d, reinterpret_cast<const A&>(a[2]), reinterpret_cast<const B&>(b1), d);
  }
}

// Copies 4, 8 or 16 bytes to shared memory, or zeros if `size` is 0.
template <int Bytes>
__device__ void CopyAsync(void* to, const void* from, int size) {
  if constexpr (Bytes == kUnit) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)),
                 "l"(from), "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(SharedAddress(to)),
                 "l"(from), "n"(Bytes), "r"(size)
                 : "memory");
  }
}

// Makes a group of the thread's copies since the last group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns when all but the thread's `Pending` latest groups are complete.
template <int Pending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace mma
}  // namespace onnxbolt
