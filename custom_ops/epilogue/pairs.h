// Last steps of an epilogue whose result has 16 bits, for two values at once: the result has to be
// rounded anyway, and in fp16 one instruction computes two values.
//
// An epilogue delays the products of other warpgroups by as long as its instructions take, or its
// results of the special-function unit, one of which takes as long as eight others. So these
// functions use polynomials instead of that unit, and an instruction that rounds and takes max(x,
// 0) at once. Values are rounded to fp16 before the function, as the tensor between two operators
// would hold them, and after each operation. tests/custom_ops/test_pairs.py compiles this file for
// the host and checks the bounds.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cutlass/numeric_types.h"
#include "epilogue/approximations.h"

namespace onnxbolt {
namespace epilogue {

// Two values of 16 bits in one register, the first one below.
using Pair = uint32_t;

__device__ inline __half2 as_half2(Pair pair) { return reinterpret_cast<const __half2&>(pair); }
__device__ inline Pair as_pair(__half2 values) { return reinterpret_cast<const Pair&>(values); }

// The same value in both halves.
__device__ inline __half2 twice(float value) { return __float2half2_rn(value); }

// max(x, 0), rounded; NaN for NaN.
template <class Output>
__device__ Pair round_positive(float first, float second) {
  Pair pair = 0;
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<Output, cutlass::half_t>)
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
  return pair;
}

// Rounded; to the largest finite value instead of infinity, so that functions that vanish far from
// zero do so there, too.
__device__ inline __half2 round_finite(float first, float second) {
  Pair pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
  return as_half2(pair);
}

// c0 + c1 x + c2 x^2 ...
__device__ inline __half2 polynomial(__half2, float c0) { return twice(c0); }

template <class... Others>
__device__ __half2 polynomial(__half2 x, float c0, Others... others) {
  return __hfma2(polynomial(x, others...), x, twice(c0));
}

// x P(x) for a sigmoid-like P, P(-x) = 1 - P(x): max(x, 0) - |x| P(-|x|), where the root of P(-t)
// is so smooth that a polynomial of degree four stands for it. Beyond |x| = 4, where |x| P(-|x|) is
// 0 beside fp16's resolution of x, it is below 0: saturation makes it 0.
__device__ inline Pair gate_pair(float first, float second, float c0, float c1, float c2, float c3,
                                 float c4) {
  const __half2 t = __habs2(round_finite(first, second));
  const __half2 root = __hfma2_sat(polynomial(t, c1, c2, c3, c4), t, twice(c0));
  return as_pair(__hfma2(__hneg2(t), __hmul2(root, root),
                         as_half2(round_positive<cutlass::half_t>(first, second))));
}

// x Phi(x), Phi the normal distribution.
__device__ inline Pair gelu_pair(float first, float second) {
  return gate_pair(first, second, 0.70703125f, -0.2783203125f, -0.0728759765625f,
                   0.048492431640625f, -0.006023406982421875f);
}

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ inline Pair gelu_tanh_pair(float first, float second) {
  return gate_pair(first, second, 0.70703125f, -0.27880859375f, -0.07159423828125f,
                   0.047760009765625f, -0.005924224853515625f);
}

// e^-|x|, in fp32 until it is rounded, so that its relative error is fp16's.
__device__ inline __half2 decay_pair(float first, float second) {
  return __floats2half2_rn(approximate_exp(-fabsf(first)), approximate_exp(-fabsf(second)));
}

// max(x, 0) + log(1 + e), e = e^-|x|, whose last term is e times a polynomial of degree three.
__device__ inline Pair softplus_pair(float first, float second) {
  const __half2 e = decay_pair(first, second);
  const __half2 slope =
      polynomial(e, 0.99951171875f, -0.48046875f, 0.23876953125f, -0.06475830078125f);
  return as_pair(__hfma2(e, slope, as_half2(round_positive<cutlass::half_t>(first, second))));
}

// x sigmoid(s x) = max(x, 0) - |x| e / (1 + e), e = e^-|s x|, with a polynomial of degree four for
// 1 / (1 + e).
__device__ inline Pair logistic_gate_pair(float first, float second, __half2 e) {
  const __half2 t = __habs2(round_finite(first, second));
  const __half2 inverse =
      polynomial(e, 1.f, -0.98583984375f, 0.8662109375f, -0.53173828125f, 0.1517333984375f);
  return as_pair(__hfma2(__hneg2(t), __hmul2(e, inverse),
                         as_half2(round_positive<cutlass::half_t>(first, second))));
}

// x sigmoid(x).
__device__ inline Pair silu_pair(float first, float second) {
  return logistic_gate_pair(first, second, decay_pair(first, second));
}

// x sigmoid(1.702 x); the factor is no coefficient of fp16.
__device__ inline Pair quick_gelu_pair(float first, float second) {
  constexpr float kFactor = 1702.f / 1000.f;
  return logistic_gate_pair(first, second, decay_pair(kFactor * first, kFactor * second));
}

}  // namespace epilogue
}  // namespace onnxbolt
