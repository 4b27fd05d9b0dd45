// TMA copies between device and shared memory (PTX ISA: cp.async.bulk.tensor). One thread issues a
// copy; loads report their bytes to a barrier, stores belong to the thread's bulk groups.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "sm90/barrier.h"

namespace onnxbolt {
namespace sm90 {

// The L2 policy for a load's lines (the encodings of CUTLASS's CacheHintSm90).
enum class Cache : uint64_t {
  kNormal = 0x1000000000000000,
  kEvictFirst = 0x12F0000000000000,
  kEvictLast = 0x14F0000000000000
};

__device__ inline uint64_t Address(const CUtensorMap& map) {
  return reinterpret_cast<uint64_t>(&map);
}

__device__ inline void Prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(Address(map)) : "memory");
}

// Loads a box of a tiled tensor. `mask`: the blocks of the cluster that get the box, at the same
// addresses as in this block.
__device__ inline void Load2D(const CUtensorMap& map, Barrier& full, void* to, int x, int y,
                              Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::
          "r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "l"(cache)
      : "memory");
}

__device__ inline void Load2D(const CUtensorMap& map, Barrier& full, void* to, int x, int y,
                              Cache cache, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "h"(mask), "l"(cache)
      : "memory");
}

__device__ inline void Load3D(const CUtensorMap& map, Barrier& full, void* to, int x, int y, int z,
                              Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "r"(z), "l"(cache)
      : "memory");
}

__device__ inline void Load3D(const CUtensorMap& map, Barrier& full, void* to, int x, int y, int z,
                              Cache cache, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "r"(z), "h"(mask), "l"(cache)
      : "memory");
}

__device__ inline void Load4D(const CUtensorMap& map, Barrier& full, void* to, int x, int y, int z,
                              int w, Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "r"(z), "r"(w), "l"(cache)
      : "memory");
}

__device__ inline void Load5D(const CUtensorMap& map, Barrier& full, void* to, int x, int y, int z,
                              int w, int v, Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "l"(cache)
      : "memory");
}

__device__ inline void Load5D(const CUtensorMap& map, Barrier& full, void* to, int x, int y, int z,
                              int w, int v, Cache cache, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "h"(mask),
      "l"(cache)
      : "memory");
}

// Loads `bytes` that lie side by side; addresses and number are multiples of 16.
__device__ inline void LoadBytes(const void* from, Barrier& full, void* to, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(full.address())
      : "memory");
}

// Loads consecutive output pixels of a convolution at one filter position: (c, w, h, n) is where
// the filter's first tap meets the first pixel, and the offsets lead from there to the position.
struct Im2col {
  int c, w, h, n;
  uint16_t offset_w, offset_h;
};

__device__ inline void LoadIm2col(const CUtensorMap& map, Barrier& full, void* to, const Im2col& at,
                                  Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(at.c), "r"(at.w), "r"(at.h), "r"(at.n),
      "h"(at.offset_w), "h"(at.offset_h), "l"(cache)
      : "memory");
}

__device__ inline void LoadIm2col(const CUtensorMap& map, Barrier& full, void* to, const Im2col& at,
                                  Cache cache, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9, %10;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(at.c), "r"(at.w), "r"(at.h), "r"(at.n),
      "h"(at.offset_w), "h"(at.offset_h), "h"(mask), "l"(cache)
      : "memory");
}

// The same of a convolution of volumes.
struct Im2colOfVolume {
  int c, w, h, d, n;
  uint16_t offset_w, offset_h, offset_d;
};

__device__ inline void LoadVolume(const CUtensorMap& map, Barrier& full, void* to,
                                  const Im2colOfVolume& at, Cache cache) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10}, %11;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(at.c), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.n),
      "h"(at.offset_w), "h"(at.offset_h), "h"(at.offset_d), "l"(cache)
      : "memory");
}

__device__ inline void LoadVolume(const CUtensorMap& map, Barrier& full, void* to,
                                  const Im2colOfVolume& at, Cache cache, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10}, %11, %12;" ::"r"(SharedAddress(to)),
      "l"(Address(map)), "r"(full.address()), "r"(at.c), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.n),
      "h"(at.offset_w), "h"(at.offset_h), "h"(at.offset_d), "h"(mask), "l"(cache)
      : "memory");
}

__device__ inline void Store2D(const CUtensorMap& map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   Address(map)),
               "r"(SharedAddress(from)), "r"(x), "r"(y)
               : "memory");
}

__device__ inline void Store4D(const CUtensorMap& map, const void* from, int x, int y, int z,
                               int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          Address(map)),
      "r"(SharedAddress(from)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Makes one group of the stores since the last commit.
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `Groups` groups still read shared memory.
template <int Groups>
__device__ void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Groups) : "memory");
}

}  // namespace sm90
}  // namespace onnxbolt
