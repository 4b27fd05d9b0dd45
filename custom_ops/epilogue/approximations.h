// Functions for results of 16 bits, in few instructions: fp16 rounds by up to 2^-11 of a value,
// bf16 by up to 2^-8.
//
// The special-function unit (exp2, reciprocal, tanh) has an eighth of the lanes but works beside
// the others: one of its results takes as long as eight other instructions, which run at the same
// time. tests/custom_ops/test_approximations.py compiles this file for the host and checks the
// bounds.
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

// exp(x). Relative error below 2^-21; 0 from x = -87 down.
__device__ inline float approximate_sigmoid(float x) {
  return reciprocal_unit(1.f + approximate_exp(-x));
}

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

// c0 + c1 x + c2 x^2 ...
__device__ inline float polynomial(float, float c0) { return c0; }

template <class... Others>
__device__ float polynomial(float x, float c0, Others... others) {
  return fmaf(polynomial(x, others...), x, c0);
}

// x P(x) for a sigmoid-like P, P(-x) = 1 - P(x): max(x, 0) - |x| P(-|x|), where log2 P(-6 t) is so
// smooth that a polynomial stands for it, and one exp2 does the rest. From |x| = 6 on P(-|x|) is 0
// beside the result's resolution; holding t there, which the product's saturation does at no cost,
// keeps infinity finite. The first coefficient has log2(6), the factor of t, in it.
//
// Every instruction counts, since an epilogue's delay the products of other warpgroups: degree
// four, which has a tenth of degree three's error, and a minimum instead of the saturation took
// GELU from 1.09 to 1.10 times a GEMM's time without epilogue (1280x3072x768 on an H200).
template <class... Coefficients>
__device__ float gate(float x, Coefficients... coefficients) {
  const float t = __saturatef(fabsf(x) * (1.f / 6.f));
  return fmaf(-t, exp2_unit(polynomial(t, coefficients...)), maximum(x, 0.f));
}

// x Phi(x), Phi the normal distribution. Absolute error below 6e-5 (equal ripple of x Phi(x)), less
// than fp16 rounds results above 0.25 by; for -inf what fp16 rounds to -0.
__device__ inline float approximate_gelu(float x) {
  return gate(x, 1.58142843f, -6.77542089f, -17.9578466f, -5.37471500f);
}

// The same for codes of 8 bits. Its error is that of x (1 + erff(x / sqrt(2))) / 2: below 2^-22 for
// x < 0, and a rounding of x above. P(0) is 1/2 exactly, so that small results have few units of
// error, too: below 2^-19 of the result for |x| < 1.
__device__ inline float exact_gelu(float x) {
  return gate(x, 1.58496249f, -6.90688229f, -16.5209656f, -11.4994469f, 10.3387833f, -5.75324392f,
              1.39612794f);
}

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Absolute error below 7.5e-5; for -inf what
// fp16 rounds to -0.
__device__ inline float approximate_gelu_tanh(float x) {
  return gate(x, 1.58792565f, -6.96794412f, -16.4314152f, -8.58104608f);
}

// log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|, whose last term is e times a polynomial of
// degree three. Relative error below 4e-4, less than the distance of neighbours in fp16.
__device__ inline float approximate_softplus(float x) {
  const float e = approximate_exp(-fabsf(x));
  const float slope =
      fmaf(fmaf(fmaf(-0.0743426446f, e, 0.254024406f), e, -0.486414010f), e, 0.999607046f);
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
