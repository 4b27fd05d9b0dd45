// Functions for results of 16 bits, in few instructions: fp16 rounds by up to 2^-11 of a value, bf16 by up to 2^-8.
//
// The special-function unit (exp2, reciprocal, tanh) has an eighth of the lanes, but it works beside the others: one of its results
// and up to eight other instructions take the time of those eight. tests/custom_ops/test_approximations.py repeats the arithmetic
// and holds the bounds.
#pragma once
#include <cuda_runtime.h>

#include "epilogue/limits.h"

namespace onnxbolt {
namespace epilogue {

__device__ inline float exp2_unit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

// x P(x) for a sigmoid-like P, P(-x) = 1 - P(x): max(x, 0) - |x| P(-|x|), where log2 P(-t) is so smooth that a polynomial of degree
// four stands for it, and one exp2 does the rest. From kHeld on P(-t) is 0 beside fp16's resolution; holding t there keeps the
// polynomial from turning around, and infinity finite.
__device__ inline float gate(float x, float c0, float c1, float c2, float c3, float c4) {
  constexpr float kHeld = 6.f;
  const float t = fminf(fabsf(x), kHeld);
  const float log2_tail = fmaf(fmaf(fmaf(fmaf(c4, t, c3), t, c2), t, c1), t, c0);
  return fmaf(-t, exp2_unit(log2_tail), maximum(x, 0.f));
}

// x Phi(x), Phi the normal distribution. Absolute error below 7e-6 (equal ripple of x Phi(x)); for -inf what fp16 rounds to -0.
__device__ inline float approximate_gelu(float x) {
  return gate(x, -1.00047982f, -1.14737046f, -0.468018681f, -0.0440762565f, 3.86553793e-3f);
}

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Absolute error below 3e-5, less than fp16 rounds results above 0.06 by; for -inf
// what fp16 rounds to -0.
__device__ inline float approximate_gelu_tanh(float x) {
  return gate(x, -1.00200307f, -1.13538635f, -0.496336818f, -0.0167552121f, -4.34058253e-3f);
}

// log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|, whose last term is e times a polynomial of degree four. Relative error below 6e-5,
// a quarter of what fp16 rounds by.
__device__ inline float approximate_softplus(float x) {
  const float e = approximate_exp(-fabsf(x));
  const float slope = fmaf(fmaf(fmaf(fmaf(0.0413462818f, e, -0.157425880f), e, 0.306300908f), e, -0.496978134f), e, 0.999943316f);
  return fmaf(e, slope, maximum(x, 0.f));
}

// x tanh(log(1 + e^x)), see steps.h. Relative error below 2^-20.
__device__ inline float approximate_mish(float x) {
  const float e = approximate_exp(x > 20.f ? 20.f : x);
  const float numerator = e * (e + 2.f);
  return x * (numerator * reciprocal_unit(numerator + 2.f));
}

}  // namespace epilogue
}  // namespace onnxbolt
