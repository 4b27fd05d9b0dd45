// Functions for results of 16 bits, in few instructions: fp16 rounds by up to 2^-11 of a value, bf16 by up to 2^-8.
//
// The special-function unit (exp2, log2, reciprocal, tanh) makes one result in eight cycles of a multiply-add per lane, so that
// polynomials of up to a dozen terms are as fast. tests/custom_ops/test_approximations.py repeats the arithmetic and holds the bounds.
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

// x Phi(x), Phi the normal distribution. Phi(x) - 1/2 is odd: nine terms fitted to |x Phi(x)| over [-4.3, 4.3] (equal ripple); the
// last term is positive, so that beyond the interval the sum leaves [0, 1] where Phi does nearly, and saturates. Absolute error below
// 4e-5 for all x, where results above 0.04 are rounded by more than that to fp16.
__device__ inline float approximate_gelu(float x) {
  const float square = x * x;
  float sum = 4.19737856e-11f;
  sum = fmaf(sum, square, -4.2489483e-09f);
  sum = fmaf(sum, square, 1.90222508e-07f);
  sum = fmaf(sum, square, -5.00614533e-06f);
  sum = fmaf(sum, square, 8.71174489e-05f);
  sum = fmaf(sum, square, -0.00107138522f);
  sum = fmaf(sum, square, 0.0096951453f);
  sum = fmaf(sum, square, -0.0661555901f);
  sum = fmaf(sum, square, 0.398802072f);
  return x * __saturatef(fmaf(sum, x, 0.5f));
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
