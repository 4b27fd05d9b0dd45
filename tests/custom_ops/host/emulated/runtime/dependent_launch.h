// The functions of custom_ops/runtime/dependent_launch.h on the host (emulator.h).
#pragma once
#include "emulator.h"
#include "runtime/instance.h"

namespace onnxbolt {

inline void LaunchDependents() {}
inline void WaitForPredecessors() {}

template <class Params>
const char* LaunchDependent(void (*kernel)(Params), dim3 grid, dim3 block, cudaStream_t,
                            const Params& params, bool, int shared_memory = 0, int cluster = 1) {
  using emulated::machine;
  emulated::Require(shared_memory <= emulated::kMemory, "too much shared memory");
  machine.kernel = [&] { kernel(params); };
  machine.grid = grid.x;
  emulated::Require(grid.x % cluster == 0, "the grid has no whole clusters");
  for (machine.block_index = 0; machine.block_index < grid.x; machine.block_index += cluster)
    emulated::RunBlocks(cluster, block.x);
  return nullptr;
}

}  // namespace onnxbolt
