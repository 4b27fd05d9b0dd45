// The layout of values in shared memory on their way between registers, which have channels as
// rows, and device memory, which has positions as rows.
#pragma once
#include "cutlass/numeric_conversion.h"
#include "sm90/halo/block.h"

namespace onnxbolt {
namespace halo {

__device__ inline void StoreTransposed(uint32_t address, const uint32_t (&matrices)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
      : "memory");
}

__device__ inline void LoadTransposed(uint32_t address, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address)
               : "memory");
}

// Two neighbouring values of 16 bits.
template <class T>
__device__ uint32_t Word(const cutlass::Array<T, 4>& values, int i) {
  return reinterpret_cast<const uint32_t*>(&values)[i];
}

template <class T>
__device__ cutlass::Array<float, 2> Unpack(uint32_t pair) {
  return cutlass::NumericArrayConverter<float, T, 2>::convert(
      reinterpret_cast<const cutlass::Array<T, 2>&>(pair));
}

// The place of a position's channels in a staged chunk: rows of 64 channels, whose 16-byte vectors
// are swizzled by the position.
template <class T>
__device__ int StagedVector(int position, int vector) {
  constexpr int kRow = kChannels * sizeof(T);
  return position * kRow + ((vector ^ (position & 7)) << 4);
}

// The address of this lane's row for stmatrix and ldmatrix: one of the four 8x8 matrices of a pair
// of groups from `position` on.
template <class T>
__device__ uint32_t MatrixRow(const char* staged, int position) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroupThreads / 32;
  return sm90::SharedAddress(
      staged + StagedVector<T>(position + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
}

}  // namespace halo
}  // namespace onnxbolt
