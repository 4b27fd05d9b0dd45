// Every step of an epilogue in fp64, from the definitions of the ONNX operators.
//
// The reference must not call what it judges: nothing here comes from epilogue/. One row per step:
// its name, its operand, how many parameters it has, and its value from x, the operand v and the
// parameters p; v of a gate is the product's other half, with its operand added, that of a rotation
// the other column of the pair, and p are its cos and sin, the latter with its sign. The rows of
// extensions' steps are generated in front of the file (templates/reference_steps.h.j2).
#pragma once
#include <cuda_runtime.h>

#include <cmath>

// clang-format off: it takes the products for pointers
#define ONNXBOLT_REFERENCE_STEPS(X)                                                              \
  X(Bias, kVector, 0, x + v)                                                                     \
  X(Scale, kVector, 0, x * v)                                                                    \
  X(PRelu, kVector, 0, x < 0 ? x * v : x)                                                        \
  X(Add, kTensor, 0, x + v)                                                                      \
  X(Mul, kTensor, 0, x * v)                                                                      \
  X(Gate, kNone, 0, x * v)                                                                       \
  X(GateBias, kVector, 0, x * v)                                                                 \
  X(Rotate, kRotation, 0, x * p[0] + v * p[1])                                                   \
  X(Relu, kNone, 0, x < 0 ? 0 : x)                                                               \
  X(LeakyRelu, kNone, 1, x < 0 ? p[0] * x : x)                                                   \
  X(Clip, kNone, 2, Between(x, p[0], p[1]))                                                      \
  X(Sigmoid, kNone, 0, Logistic(x))                                                              \
  X(Tanh, kNone, 0, tanh(x))                                                                     \
  X(GeluErf, kNone, 0, x * erfc(-x * M_SQRT1_2) / 2)                                             \
  X(GeluTanh, kNone, 0, x * (1 + tanh(M_SQRT1_2 * M_2_SQRTPI * (x + 0.044715 * x * x * x))) / 2) \
  X(Silu, kNone, 0, x * Logistic(x))                                                             \
  X(QuickGelu, kNone, 0, x * Logistic(1.702 * x))                                                \
  X(HardSwish, kNone, 0, x * Between(x / 6 + 0.5, 0, 1))                                         \
  X(HardSigmoid, kNone, 2, Between(p[0] * x + p[1], 0, 1))                                       \
  X(Softplus, kNone, 0, LogOfOnePlusExp(x))                                                      \
  X(Elu, kNone, 1, x < 0 ? p[0] * expm1(x) : x)                                                  \
  X(Mish, kNone, 0, x * tanh(LogOfOnePlusExp(x)))                                                \
  X(Dequantize, kVector, 1, x * (p[0] * v))                                                      \
  X(DecodeI8, kNone, 2, (x - p[1]) * p[0])                                                       \
  X(DecodeU8, kNone, 2, (x - p[1]) * p[0])                                                       \
  X(DecodeE4M3, kNone, 2, (x - p[1]) * p[0])                                                     \
  X(AddCodesI8, kTensor, 2, x + (v - p[1]) * p[0])                                               \
  X(AddCodesU8, kTensor, 2, x + (v - p[1]) * p[0])                                               \
  X(AddCodesE4M3, kTensor, 2, x + (v - p[1]) * p[0])                                             \
  X(MulCodesI8, kTensor, 2, x * ((v - p[1]) * p[0]))                                             \
  X(MulCodesU8, kTensor, 2, x * ((v - p[1]) * p[0]))                                             \
  X(MulCodesE4M3, kTensor, 2, x * ((v - p[1]) * p[0]))                                           \
  X(AddF32, kTensor, 0, x + v)                                                                   \
  X(AddF16, kTensor, 0, x + v)                                                                   \
  X(AddBF16, kTensor, 0, x + v)                                                                  \
  X(StoreF32, kNone, 0, x)                                                                       \
  X(StoreF16, kNone, 0, x)                                                                       \
  X(StoreBF16, kNone, 0, x)                                                                      \
  X(RequantizeI8, kNone, 2, (NearestI8(x, p) - p[1]) * p[0])                                     \
  X(RequantizeU8, kNone, 2, (NearestU8(x, p) - p[1]) * p[0])                                     \
  X(RequantizeE4M3, kNone, 2, NearestE4M3(x, p) * p[0])                                          \
  X(QuantizeI8, kNone, 2, NearestI8(x, p))                                                       \
  X(QuantizeU8, kNone, 2, NearestU8(x, p))                                                       \
  X(QuantizeE4M3, kNone, 2, NearestE4M3(x, p))
// clang-format on
#ifndef ONNXBOLT_EXTENSION_STEPS
#define ONNXBOLT_EXTENSION_STEPS(X)
#endif
#define ONNXBOLT_STEPS(X) ONNXBOLT_REFERENCE_STEPS(X) ONNXBOLT_EXTENSION_STEPS(X)

namespace onnxbolt {
namespace profiler {

enum class OperandKind { kNone, kVector, kTensor, kRotation };

#define ONNXBOLT_CODE(Name, ...) k##Name,
enum Code { ONNXBOLT_STEPS(ONNXBOLT_CODE) };
#undef ONNXBOLT_CODE

struct StepRow {
  const char* name;
  int code;
  OperandKind kind;
  int params;
};

#define ONNXBOLT_ROW(Name, kind, params, ...) {#Name, k##Name, OperandKind::kind, params},
constexpr StepRow kStepRows[] = {ONNXBOLT_STEPS(ONNXBOLT_ROW)};
#undef ONNXBOLT_ROW

// NaN passes through all of them.
__host__ __device__ inline double Between(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}
__host__ __device__ inline double Logistic(double x) { return 1 / (1 + exp(-x)); }
// Codes of values: p[0] is the scale, p[1] the zero point.
__host__ __device__ inline double NearestI8(double x, const float* p) {
  return Between(rint(x / p[0]) + p[1], -128, 127);
}
__host__ __device__ inline double NearestU8(double x, const float* p) {
  return Between(rint(x / p[0]) + p[1], 0, 255);
}
// E4M3FN has three bits behind the first one, exponents from -6 on, and ends at 448.
__host__ __device__ inline double NearestE4M3(double x, const float* p) {
  const double code = Between(x / p[0], -448, 448);
  if (!(fabs(code) > 0)) return code;
  const double step = ldexp(1.0, (fabs(code) < 0x1p-6 ? -6 : ilogb(code)) - 3);
  return rint(code / step) * step;
}
// True for steps that round to codes.
__host__ __device__ inline bool RoundsToCodes(int code) {
  return code >= kRequantizeI8 && code <= kQuantizeE4M3;
}
__host__ __device__ inline double LogOfOnePlusExp(double x) {
  return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
}

__host__ __device__ inline double ReferenceStep(int code, double x, double v, const float* p) {
  switch (code) {
#define ONNXBOLT_CASE(Name, kind, params, ...) \
  case k##Name:                                \
    return __VA_ARGS__;
    ONNXBOLT_STEPS(ONNXBOLT_CASE)
#undef ONNXBOLT_CASE
  }
  return x;
}

// A value, and how far a kernel's may be from it.
struct Bounded {
  double value, error;
};

// The result of a step, and its error. The error is taken at both ends of the argument's (a step
// that turns between them, as GELU does, adds one of second order). The kernel adds `rounding` in
// parts of the result, and `own` of its implementation in parts of argument and result, of 1 at the
// least. Codes are other ones where the error of the quotient reaches the middle of two.
__host__ __device__ inline Bounded BoundedStep(int code, Bounded x, double v, const float* p,
                                               double rounding, double own) {
  if (RoundsToCodes(code)) x.error += rounding * fabs(x.value);
  const double y = ReferenceStep(code, x.value, v, p);
  const double above = fabs(ReferenceStep(code, x.value + x.error, v, p) - y);
  const double below = fabs(ReferenceStep(code, x.value - x.error, v, p) - y);
  return {y,
          fmax(above, below) + rounding * fabs(y) + own * fmax(fmax(fabs(x.value), fabs(y)), 1.0)};
}

}  // namespace profiler
}  // namespace onnxbolt
