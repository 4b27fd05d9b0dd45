// A GPU's threads on the host, for kernels whose logic is to be tested without a GPU: the threads
// of a block, or of a cluster's blocks, are fibers that take turns whenever one waits for others.
// Shared memory begins as NaNs; a block's own is put in its place whenever one of its threads has
// its turn.
//
// Include this before the kernel. It must not be compiled by nvcc.
#pragma once
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

namespace emulated {

constexpr int kWarp = 32, kMostThreads = 1024, kStack = 256 << 10, kMemory = 227 << 10;

struct Copy {
  void* to;
  const void* from;
  int bytes, size;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
  int awaited = 0;                       // the cluster's generation at which it arrived
  std::deque<std::vector<Copy>> groups;  // copies under way; the last group is open
};

// Threads that meet: a warp, or the block.
struct Meeting {
  int arrived = 0, generation = 0;
  bool any = false, found = false;
  uint32_t words[kWarp][8];
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps, blocks;
  Meeting cluster;
  ucontext_t scheduler;
  std::function<void()> kernel;
  int thread = 0, threads = 0;              // among those of all blocks under way; of a block
  unsigned block_index = 0, grid = 0;       // the first one under way; all blocks
  std::vector<std::vector<char>> memories;  // other blocks' shared memory
  int present = 0;                          // the block whose shared memory is in its place
  bool eager = false;      // copies are done when they are issued, else when they are waited for
  char* memory = nullptr;  // shared memory, of kMemory bytes
};
inline Machine machine;

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "emulated kernel, block %u, thread %d: %s\n", machine.block_index,
               machine.thread, what);
  std::abort();
}

inline int OwnBlock() { return machine.thread / machine.threads; }

inline Fiber& Own() { return machine.fibers[machine.thread]; }
inline Meeting& OwnWarp() { return machine.warps[machine.thread / kWarp]; }
inline int Lane() { return machine.thread % kWarp; }

inline void Yield() { swapcontext(&Own().context, &machine.scheduler); }

// Returns when `count` threads have come; true if one of them brought true.
inline bool Meet(Meeting& meeting, int count, bool value = false) {
  const int generation = meeting.generation;
  meeting.any |= value;
  if (++meeting.arrived == count) {
    meeting.found = meeting.any;
    meeting.any = false;
    meeting.arrived = 0;
    ++meeting.generation;
  }
  while (meeting.generation == generation) Yield();
  return meeting.found;
}

inline bool MeetWarp(bool value = false) { return Meet(OwnWarp(), kWarp, value); }

inline void Main() {
  machine.kernel();
  Own().done = true;
  Yield();
}

// Puts a block's shared memory in its place.
inline void Present(int block) {
  if (block == machine.present) return;
  std::memcpy(machine.memories[machine.present].data(), machine.memory, kMemory);
  std::memcpy(machine.memory, machine.memories[block].data(), kMemory);
  machine.present = block;
}

// A cluster of blocks, of so many threads each. Threads in another order each time.
inline void RunBlocks(int blocks, int threads) {
  const int all = blocks * threads;
  std::memset(machine.memory, 0xff, kMemory);
  machine.memories.assign(blocks > 1 ? blocks : 0, std::vector<char>(kMemory, char(0xff)));
  machine.present = 0;
  machine.threads = threads;
  machine.warps.assign(all / kWarp, {});
  machine.blocks.assign(blocks, {});
  machine.cluster = {};
  machine.fibers.resize(all);
  for (Fiber& fiber : machine.fibers) {
    fiber.done = false;
    fiber.groups.assign(1, {});
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Main, 0);
  }
  for (int left = all, turn = 0; left > 0; ++turn) {
    left = 0;
    for (int i = 0; i < all; ++i) {
      machine.thread = (turn % 2 ? all - 1 - i : i);
      if (Own().done) continue;
      Present(OwnBlock());
      swapcontext(&machine.scheduler, &Own().context);
      left += !Own().done;
    }
    Require(turn < 1 << 22, "the block does not end");
  }
}

inline void Finish(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    std::memset(copy.to, 0, copy.bytes);
    if (copy.size > 0) std::memcpy(copy.to, copy.from, copy.size);
  }
}

struct ThreadIndex {
  struct {
    operator unsigned() const { return machine.thread % machine.threads; }
  } x;
};
struct BlockIndex {
  struct {
    operator unsigned() const { return machine.block_index + OwnBlock(); }
  } x;
};
struct GridDim {
  struct {
    operator unsigned() const { return machine.grid; }
  } x;
};
inline const GridDim grid_dim;
inline const ThreadIndex thread_index;
inline const BlockIndex block_index;

}  // namespace emulated

#define __launch_bounds__(...)
#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define gridDim emulated::grid_dim

inline bool __syncthreads_or(bool value) {
  auto& block = emulated::machine.blocks[emulated::OwnBlock()];
  return emulated::Meet(block, emulated::machine.threads, value);
}
inline void __syncthreads() { __syncthreads_or(false); }
inline void __syncwarp() { emulated::MeetWarp(); }
inline bool __any_sync(unsigned, bool value) { return emulated::MeetWarp(value); }

inline float __shfl_sync(unsigned, float value, int lane) {
  auto& words = emulated::OwnWarp().words;
  std::memcpy(&words[emulated::Lane()][0], &value, 4);
  emulated::MeetWarp();
  std::memcpy(&value, &words[lane][0], 4);
  emulated::MeetWarp();
  return value;
}
inline float __shfl_xor_sync(unsigned mask, float value, int distance) {
  return __shfl_sync(mask, value, emulated::Lane() ^ distance);
}

inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
using std::max;
using std::min;
