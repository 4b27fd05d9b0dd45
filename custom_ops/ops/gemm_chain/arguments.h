// The arguments of several GEMMs in one kernel, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// Several GEMMs in one kernel: D = epilogue_l(.. epilogue_0(A W_0^T) .. W_l^T). Layer i has weights
// [n[i], n[i - 1]], densely; n[-1] is k. The layers' params follow one another in the first
// layer's, tensors are one layer's: the last one's, or the first one's of two.
struct ChainArguments {
  int64_t m, k;
  int layers;
  int64_t n[kMaxLayers];
  const void *a, *weights[kMaxLayers];
  void* d;
  int64_t lda, ldd;
  EpilogueArguments epilogue[kMaxLayers];
  int64_t ldw = 0;  // the pitch of the first layer's weights if their rows are padded, else 0
  void* stored = nullptr;  // the first layer's result [m, n[0]], without gaps, if it is an output,
                           // too; then tensors are that layer's

  constexpr int64_t depth(int layer) const { return layer == 0 ? k : n[layer - 1]; }
  constexpr int64_t weight_pitch(int layer) const {
    return layer == 0 && ldw > 0 ? ldw : depth(layer);
  }
};

}  // namespace onnxbolt
