// Splitting along k: the blocks of a cluster share a tile's k-blocks. Each block sums its part,
// then finishes some units of the tile with the others' sums, which it gets through distributed
// shared memory. Sums are added in the order of the ranks, so that results have the same bits on
// every run; no partial sum goes through device memory.
#pragma once
#include "sm90/shape.h"

namespace onnxbolt {
namespace sm90 {

// The rank of the block that finishes a unit. If there are more blocks than units, some blocks only
// send.
template <class K>
CUTLASS_DEVICE int OwnerOfUnit(int group, int unit, int split) {
  return (group * K::Finish::kUnits + unit) * split / (K::kGroups * K::Finish::kUnits);
}

// Exchanges the sums of one warpgroup. Every thread of all the cluster's consumer warpgroups makes
// the calls, after its main loop.
template <class K>
class SplitSums {
 public:
  using Finish = typename K::Finish;
  using Sum = typename K::Sum;
  using Four = std::conditional_t<std::is_same_v<Sum, float>, float4, int4>;
  static constexpr int kValues =
      Finish::kUnitColumns * K::kFold / 2;  // values of one thread in a unit
  static constexpr int kSlotBytes = 128 * kValues * sizeof(float);

  CUTLASS_DEVICE SplitSums(SharedMemory<K> memory, int group, int split, int rank)
      : memory_(memory), group_(group), split_(split), rank_(rank), thread_(threadIdx.x % 128) {}

  CUTLASS_DEVICE bool owns(int unit) const { return OwnerOfUnit<K>(group_, unit, split_) == rank_; }

  // Sends a unit's sums to its owner.
  CUTLASS_DEVICE void send(int unit, const Sum* sums) const {
    const float* values = reinterpret_cast<const float*>(sums);  // moved as they are
    const uint32_t to =
        AddressIn(OwnerOfUnit<K>(group_, unit, split_), SharedAddress(slot(unit, rank_)));
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 512),
                   "f"(values[i]), "f"(values[i + 1]), "f"(values[i + 2]), "f"(values[i + 3])
                   : "memory");
    }
  }

  // Adds up a unit that this block finishes. `values`: this block's sums, then the total.
  CUTLASS_DEVICE void receive(int unit, Sum* values) const {
    Sum sums[kValues] = {};
    for (int source = 0; source < split_; ++source) {
      const Four* from = reinterpret_cast<const Four*>(slot(unit, source));
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        const Four part = source == rank_
                              ? Four{values[i], values[i + 1], values[i + 2], values[i + 3]}
                              : from[i * 32];
        sums[i] += part.x, sums[i + 1] += part.y, sums[i + 2] += part.z, sums[i + 3] += part.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = sums[i];
  }

 private:
  // The slot for the sums that rank `source` sends of a unit: its owner has one for each of its
  // units and each source.
  CUTLASS_DEVICE char* slot(int unit, int source) const {
    constexpr int kAll = K::kGroups * Finish::kUnits;
    const int index = group_ * Finish::kUnits + unit, owner = index * split_ / kAll;
    const int first = (owner * kAll + split_ - 1) / split_;  // the owner's first unit
    return memory_.base + ((index - first) * split_ + source) * kSlotBytes + thread_ * 16;
  }

  SharedMemory<K> memory_;
  int group_, split_, rank_, thread_;
};

}  // namespace sm90
}  // namespace onnxbolt
