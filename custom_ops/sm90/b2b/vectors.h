// The epilogue vectors of all layers, in shared memory for all tiles.
//
// All loads are under way before the first ones arrive. If registers allow it, the consumers load,
// so that no producer waits: in a block that starts late, when other blocks' tiles fill the
// memory's queues, it would wait for microseconds.
#pragma once
#include "sm90/b2b/shape.h"

namespace onnxbolt {
namespace sm90 {

// One layer's vectors on their way through the registers of `Threads` threads. They are stored in
// blocks of columns, as the layer's products have them: [Columns / Block][Vectors][Block]. Zeros
// follow the layer's end.
template <int Vectors, int Columns, int Block, int Threads>
class LayerVectors {
 public:
  __device__ LayerVectors(const EpilogueArguments& operands, int end, int thread)
      : thread_(thread) {
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      const int at = thread + i * Threads, column = at / (Vectors * Block) * Block + at % Block;
      if (at < kValues)
        values_[i] = column < end ? operands.vectors[at / Block % Vectors][column] : 0.f;
    }
  }

  __device__ void keep(float* vectors) const {
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      if (thread_ + i * Threads < kValues) vectors[thread_ + i * Threads] = values_[i];
    }
  }

 private:
  static constexpr int kValues = Vectors * Columns, kFetches = CeilDivide(kValues, Threads);
  float values_[kFetches];
  int thread_;
};

template <int Columns, int Block, int Threads>
class LayerVectors<0, Columns, Block, Threads> {
 public:
  __device__ LayerVectors(const EpilogueArguments&, int, int) {}
  __device__ void keep(float*) const {}
};

// Loads the vectors of all layers. Called by `thread` of `Threads`, who meet afterwards.
template <class K, int Threads, int L = 0, class Memory>
__device__ void LoadVectors(const ChainParams& params, Memory memory, int thread) {
  if constexpr (L < K::kLayers) {
    const LayerVectors<K::vectors(L), K::columns(L), K::block(L), Threads> layer(
        params.operands[L], params.columns[L], thread);
    LoadVectors<K, Threads, L + 1>(params, memory, thread);
    layer.keep(memory.template vectors<L>());
  }
}

}  // namespace sm90
}  // namespace onnxbolt
