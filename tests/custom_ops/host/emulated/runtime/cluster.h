// The functions of custom_ops/runtime/cluster.h on the host (emulator.h).
#pragma once
#include "emulator.h"

namespace onnxbolt {

inline int ClusterRank() { return emulated::OwnBlock(); }

inline void ArriveAtCluster() {
  auto& cluster = emulated::machine.cluster;
  emulated::Own().awaited = cluster.generation;
  if (++cluster.arrived == int(emulated::machine.fibers.size())) {
    cluster.arrived = 0;
    ++cluster.generation;
  }
}

inline void WaitForCluster() {
  while (emulated::machine.cluster.generation == emulated::Own().awaited) emulated::Yield();
}

template <class Value>
Value LoadFromBlock(const Value* address, int rank) {
  auto& machine = emulated::machine;
  emulated::Require(reinterpret_cast<uintptr_t>(address) % sizeof(Value) == 0,
                    "a load is not aligned");
  if (rank == machine.present) return *address;
  const auto offset = reinterpret_cast<const char*>(address) - machine.memory;
  emulated::Require(offset >= 0 && offset < emulated::kMemory, "an address is not shared memory");
  emulated::Require(rank < int(machine.memories.size()), "the cluster has no such block");
  Value value;
  std::memcpy(&value, machine.memories[rank].data() + offset, sizeof value);
  return value;
}

}  // namespace onnxbolt
