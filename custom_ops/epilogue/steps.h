// Device functions of the steps of onnxbolt/epilogues/: one struct per entry, named by its
// `functor`.
//
// A step maps one fp32 value, its operand and its parameters to one fp32 value. NaN passes through,
// as it does through the ONNX operators; fminf and fmaxf would swallow it.
//
// `apply` is as exact as fp32 allows. Where that takes long, `approximate` is for results that are
// rounded to 16 bits: its error is below that rounding (epilogue/approximations.h). `finish` is for
// a chain's last step: two values, rounded to 16 bits (epilogue/pairs.h).
#pragma once
#include <cuda_runtime.h>

#include "epilogue/approximations.h"
#include "epilogue/limits.h"
#include "epilogue/pairs.h"

namespace onnxbolt {
namespace epilogue {

enum class Operand { kNone, kVector, kTensor, kRotation };

// A step's operand and number of parameters; kHeavy marks long code, for which an epilogue's outer
// loop is better not unrolled, kGates a step that gets the product's other half with its operand.
// A step with kRotates has `rotate` for the values of a pair of columns in the place of `apply`;
// one with kPacks makes codes of 8 bits, by its `Packer` four at a time (epilogue/codes.h).
template <Operand Kind, int Params = 0, bool Heavy = false>
struct Step {
  static constexpr Operand kOperand = Kind;
  static constexpr int kParams = Params;
  static constexpr bool kHeavy = Heavy, kApproximable = false, kGates = false, kRotates = false;
  static constexpr bool kStores = false, kPacks = false;
  struct Packer {
    __device__ explicit Packer(const float*) {}
  };
  // The type of values that a kernel of codes reads or writes beside them, or void.
  using Value = void;
  template <class Output>
  static constexpr bool kFinishes = false;
};

// Steps whose `finish` is for fp16 alone: bf16 is too coarse for its arithmetic.
template <bool Heavy = false>
struct HalfStep : Step<Operand::kNone, 0, Heavy> {
  template <class Output>
  static constexpr bool kFinishes = std::is_same_v<Output, cutlass::half_t>;
};

// Division with an error of two ulp; for |divisor| > 2^126 the quotient is 0, its limit here.
__device__ inline float sigmoid(float x) { return __fdividef(1.f, 1.f + expf(-x)); }

struct Bias : Step<Operand::kVector> {
  __device__ static float apply(float x, float vector, const float*) { return x + vector; }
};

struct Scale : Step<Operand::kVector> {
  __device__ static float apply(float x, float vector, const float*) { return x * vector; }
};

struct PRelu : Step<Operand::kVector> {
  __device__ static float apply(float x, float slope, const float*) {
    return x < 0.f ? x * slope : x;
  }
};

struct Add : Step<Operand::kTensor> {
  __device__ static float apply(float x, float tensor, const float*) { return x + tensor; }
};

struct Mul : Step<Operand::kTensor> {
  __device__ static float apply(float x, float tensor, const float*) { return x * tensor; }
};

// Gates multiply by the other half of the product (Chain::kGated), to which GateBias adds a vector.
struct Gate : Step<Operand::kNone> {
  static constexpr bool kGates = true;
  __device__ static float apply(float x, float half, const float*) { return x * half; }
};

struct GateBias : Step<Operand::kVector> {
  static constexpr bool kGates = true;
  __device__ static float apply(float x, float half, const float*) { return x * half; }
};

// Rotates pairs of neighbouring columns (a, b), whose cos and sin the operand has in their places.
struct Rotate : Step<Operand::kRotation> {
  static constexpr bool kRotates = true;
  __device__ static void rotate(float& a, float& b, float cos, float sin) {
    const float first = a * cos - b * sin;
    b = b * cos + a * sin;
    a = first;
  }
};

struct Relu : Step<Operand::kNone> {
  __device__ static float apply(float x, float, const float*) { return maximum(x, 0.f); }
  template <class Output>
  static constexpr bool kFinishes = sizeof(Output) == 2;
  template <class Output>
  __device__ static Pair finish(float first, float second) {
    return round_positive<Output>(first, second);
  }
};

struct LeakyRelu : Step<Operand::kNone, 1> {
  __device__ static float apply(float x, float, const float* alpha) {
    return x < 0.f ? x * alpha[0] : x;
  }
};

struct Clip : Step<Operand::kNone, 2> {
  __device__ static float apply(float x, float, const float* bounds) {
    return clamp(x, bounds[0], bounds[1]);
  }
};

struct Sigmoid : Step<Operand::kNone> {
  __device__ static float apply(float x, float, const float*) { return sigmoid(x); }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) {
    return approximate_sigmoid(x);
  }
};

struct Tanh : Step<Operand::kNone, 0, true> {
  __device__ static float apply(float x, float, const float*) { return tanhf(x); }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) { return approximate_tanh(x); }
};

struct GeluErf : HalfStep<true> {
  __device__ static float apply(float x, float, const float*) {
    return 0.5f * x * (1.f + erff(x * 0.70710678f));
  }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) { return approximate_gelu(x); }
  template <class>
  __device__ static Pair finish(float first, float second) {
    return gelu_pair(first, second);
  }
};

// (1 + tanh u) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh : HalfStep<> {
  __device__ static float apply(float x, float, const float*) {
    return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
  }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) {
    return approximate_gelu_tanh(x);
  }
  template <class>
  __device__ static Pair finish(float first, float second) {
    return gelu_tanh_pair(first, second);
  }
};

struct Silu : HalfStep<> {
  __device__ static float apply(float x, float, const float*) { return x * sigmoid(x); }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) {
    return x * approximate_sigmoid(x);
  }
  template <class>
  __device__ static Pair finish(float first, float second) {
    return silu_pair(first, second);
  }
};

struct QuickGelu : HalfStep<> {
  __device__ static float apply(float x, float, const float*) { return x * sigmoid(1.702f * x); }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) {
    return x * approximate_sigmoid(1.702f * x);
  }
  template <class>
  __device__ static Pair finish(float first, float second) {
    return quick_gelu_pair(first, second);
  }
};

struct HardSwish : Step<Operand::kNone> {
  __device__ static float apply(float x, float, const float*) {
    return x * __saturatef(x * (1.f / 6.f) + 0.5f);
  }
};

struct HardSigmoid : Step<Operand::kNone, 2> {
  __device__ static float apply(float x, float, const float* p) {
    return clamp(p[0] * x + p[1], 0.f, 1.f);
  }
};

// log(1 + e^x) without overflow for large x.
struct Softplus : HalfStep<true> {
  __device__ static float apply(float x, float, const float*) {
    return (x < 0.f ? 0.f : x) + log1pf(expf(-fabsf(x)));
  }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) {
    return approximate_softplus(x);
  }
  template <class>
  __device__ static Pair finish(float first, float second) {
    return softplus_pair(first, second);
  }
};

struct Elu : Step<Operand::kNone, 1, true> {
  __device__ static float apply(float x, float, const float* alpha) {
    return x < 0.f ? alpha[0] * expm1f(x) : x;
  }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float* alpha) {
    return x < 0.f ? alpha[0] * (approximate_exp(x) - 1.f) : x;
  }
};

// tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2) for e = e^x; from x = 20 on it is 1 in fp32.
struct Mish : Step<Operand::kNone> {
  __device__ static float apply(float x, float, const float*) {
    float e = expf(x > 20.f ? 20.f : x);
    float numerator = e * (e + 2.f);
    return x * __fdividef(numerator, numerator + 2.f);
  }
  static constexpr bool kApproximable = true;
  __device__ static float approximate(float x, float, const float*) { return approximate_mish(x); }
};

// The mean over an image's pixels, behind all other steps. It is no function of one value: a kernel
// that does not know it does not compile.
struct Mean : Step<Operand::kNone> {};

}  // namespace epilogue
}  // namespace onnxbolt
