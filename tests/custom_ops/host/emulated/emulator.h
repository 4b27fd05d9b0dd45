// A GPU's threads on the host, for kernels whose logic is to be tested without a GPU: the threads
// of a block are fibers that take turns whenever one waits for others. Shared memory begins as
// NaNs.
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
  std::vector<Meeting> warps;
  Meeting block;
  ucontext_t scheduler;
  std::function<void()> kernel;
  int thread = 0;
  unsigned block_index = 0;
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

// Threads in another order each time.
inline void RunBlock(int threads) {
  std::memset(machine.memory, 0xff, kMemory);
  machine.warps.assign(threads / kWarp, {});
  machine.block = {};
  machine.fibers.resize(threads);
  for (Fiber& fiber : machine.fibers) {
    fiber.done = false;
    fiber.groups.assign(1, {});
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Main, 0);
  }
  for (int left = threads, turn = 0; left > 0; ++turn) {
    left = 0;
    for (int i = 0; i < threads; ++i) {
      machine.thread = (turn % 2 ? threads - 1 - i : i);
      if (Own().done) continue;
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
    operator unsigned() const { return machine.thread; }
  } x;
};
struct BlockIndex {
  struct {
    operator unsigned() const { return machine.block_index; }
  } x;
};
inline const ThreadIndex thread_index;
inline const BlockIndex block_index;

}  // namespace emulated

#define __launch_bounds__(...)
#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index

inline bool __syncthreads_or(bool value) {
  return emulated::Meet(emulated::machine.block, int(emulated::machine.fibers.size()), value);
}
inline void __syncthreads() { __syncthreads_or(false); }
inline void __syncwarp() { emulated::MeetWarp(); }
inline bool __any_sync(unsigned, bool value) { return emulated::MeetWarp(value); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
  auto& words = emulated::OwnWarp().words;
  std::memcpy(&words[emulated::Lane()][0], &value, 4);
  emulated::MeetWarp();
  std::memcpy(&value, &words[emulated::Lane() ^ distance][0], 4);
  emulated::MeetWarp();
  return value;
}

inline float __fmul_rn(float x, float y) { return x * y; }
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
using std::max;
using std::min;
