// A chain's vectors along its layers' columns, in shared memory for all tiles.
#pragma once
#include "chain/shape.h"

namespace onnxbolt {
namespace sm90 {

// Of all layers, each in blocks as its products have them: [columns / block][vectors][block]. Zeros beyond the layers' ends. All threads.
template <class K, int L = 0, class Memory>
__device__ void LoadVectors(const ChainParams& params, Memory memory) {
  if constexpr (L < K::kLayers) {
    constexpr int kBlock = K::block(L), kVectors = K::vectors(L);
    for (int vector = 0; vector < kVectors; ++vector) {
      const float* source = params.operands[L].vectors[vector];
      for (int column = threadIdx.x; column < K::columns(L); column += K::kThreads) {
        const int at = (column / kBlock * kVectors + vector) * kBlock + column % kBlock;
        memory.template vectors<L>()[at] = column < params.columns[L] ? source[column] : 0.f;
      }
    }
    LoadVectors<K, L + 1>(params, memory);
  }
}

}  // namespace sm90
}  // namespace onnxbolt
