// Functions for results of 16 bits, in few instructions: fp16 rounds by up to 2^-11 of a value, bf16 by up to 2^-8.
//
// The special-function unit (exp2, log2, reciprocal, tanh) has an eighth of the lanes, but it works beside the others: two of its
// results cost less than a polynomial of nine terms. tests/custom_ops/test_approximations.py repeats the arithmetic and holds the
// bounds.
#pragma once
#include <cuda_runtime.h>

namespace onnxbolt {
namespace epilogue {

__device__ inline float exp2_unit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float log2_unit(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float reciprocal_unit(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float approximate_exp(float x) { return exp2_unit(1.4426950409f * x); }

// Relative error below 2^-21; 0 from x = -87 down.
__device__ inline float approximate_sigmoid(float x) { return reciprocal_unit(1.f + approximate_exp(-x)); }

// Relative error below 2^-10.9, the instruction's (PTX ISA: tanh.approx).
__device__ inline float approximate_tanh(float x) {
#if __CUDA_ARCH__ >= 750
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return tanhf(x);
#endif
}

// x Phi(x), Phi the normal distribution, as x sigmoid(u) with u = x (c0 + c1 x^2 + c2 x^4) fitted to logit(Phi(x)) (equal ripple of
// x Phi(x)). Where the last term would turn u around, x^2 is held: sigmoid(u) is 0 or 1 there. Absolute error below 3e-5 for all x,
// which is less than fp16 rounds results above 0.06 by.
__device__ inline float approximate_gelu(float x) {
  constexpr float kHeld = 50.f, kLog2E = 1.4426950409f;
  const float square = fminf(x * x, kHeld);
  const float u = fmaf(fmaf(7.03033661e-4f * kLog2E, square, -0.0740112926f * kLog2E), square, -1.59501577f * kLog2E);
  return x * reciprocal_unit(1.f + exp2_unit(x * u));
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): absolute error below 3e-7, the rounding of 1 + e^-|x|.
__device__ inline float approximate_softplus(float x) {
  const float tail = 0.6931471806f * log2_unit(1.f + approximate_exp(-fabsf(x)));
  return (x < 0.f ? 0.f : x) + tail;
}

// x tanh(log(1 + e^x)), see steps.h. Relative error below 2^-20.
__device__ inline float approximate_mish(float x) {
  const float e = approximate_exp(x > 20.f ? 20.f : x);
  const float numerator = e * (e + 2.f);
  return x * (numerator * reciprocal_unit(numerator + 2.f));
}

}  // namespace epilogue
}  // namespace onnxbolt
