// The larger and the smaller of two values, or NaN where either is: fmaxf and fminf would swallow
// it.
#pragma once
#include <cuda_runtime.h>

namespace onnxbolt {
namespace epilogue {

// One instruction since sm_80.
__device__ inline float maximum(float x, float y) {
#if __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
#else
  return x < y ? y : x;
#endif
}

__device__ inline float minimum(float x, float y) { return -maximum(-x, -y); }

__device__ inline float clamp(float x, float low, float high) {
  return minimum(maximum(x, low), high);
}

}  // namespace epilogue
}  // namespace onnxbolt
