// Synchronization of the threads of a block and of a cluster on sm_90 (PTX ISA: mbarrier,
// barrier.cluster, fence.proxy.async).
#pragma once
#include <cstdint>

namespace onnxbolt {
namespace sm90 {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// An mbarrier in shared memory. Its phases alternate in parity. A wait returns once the phase of
// the given parity is complete, so that it cannot tell a phase from the one two before.
class Barrier {
 public:
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals));
  }

  // Arrives, and makes the phase wait for this many bytes to be copied into shared memory.
  __device__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }

  // Arrives at the same barrier of block `rank` of the cluster.
  __device__ void arrive_at(int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(address()),
        "r"(rank)
        : "memory");
  }

  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }

  __device__ uint32_t address() const { return SharedAddress(&state_); }

 private:
  uint64_t state_;
};

// Makes initialized barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's accesses to shared memory before later ones by TMA and wgmma.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One of the block's 16 hardware barriers; 0 is __syncthreads'.
__device__ inline void SyncThreads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Waits for all of a block's consumer warpgroups. Barriers of single warpgroups, and of pairs, have
// lower numbers.
__device__ inline void SyncConsumers(int warpgroups) { SyncThreads(15, 128 * warpgroups); }

// Waits for all threads of all blocks of the cluster, except those that have exited.
__device__ inline void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ inline int ClusterRank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The address in the shared memory of block `rank` of the cluster that is `address` in this one's.
__device__ inline uint32_t AddressIn(int rank, uint32_t address) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// True for one thread of a converged warp.
__device__ inline bool ElectOne() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

template <int Registers>
__device__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ void ClaimRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// A place in a ring of stages, and the parity of the phase that a consumer waits for there.
template <int Stages>
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ void advance(int count) {
    const int passed = stage + count;
    parity ^= (passed / Stages) & 1;
    stage = passed % Stages;
  }
};

}  // namespace sm90
}  // namespace onnxbolt
