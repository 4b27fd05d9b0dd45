// Exchange between the blocks of a cluster, on sm_90 and later; on other architectures a block is
// alone.
#pragma once
#include <cstdint>

namespace onnxbolt {

// The block's place in its cluster.
__device__ inline int ClusterRank() {
  int rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// All threads of the cluster arrive; what they wrote before is seen behind WaitForCluster, which
// also orders the block's own threads.
__device__ inline void ArriveAtCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ inline void WaitForCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The value at the same address in the shared memory of block `rank`.
__device__ inline float LoadFromBlock(const float* address, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float value;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}"
      : "=f"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))), "r"(rank)
      : "memory");
  return value;
#else
  return *address;
#endif
}

// Four neighbouring values, at a multiple of 16 bytes.
__device__ inline float4 LoadFromBlock(const float4* address, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  float4 values;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))), "r"(rank)
      : "memory");
  return values;
#else
  return *address;
#endif
}

}  // namespace onnxbolt
