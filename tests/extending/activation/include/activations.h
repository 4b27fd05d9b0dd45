// Epilogue steps of an extension.
#pragma once
#include "epilogue/steps.h"

namespace extending {

using onnxbolt::epilogue::Operand;
using onnxbolt::epilogue::Step;

// x sigmoid(1.5 x)
struct SteepSwish : Step<Operand::kNone> {
  __device__ static float apply(float x, float, const float*) {
    return x * onnxbolt::epilogue::sigmoid(1.5f * x);
  }
};

// max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)
struct Celu : Step<Operand::kNone, 1> {
  __device__ static float apply(float x, float, const float* alpha) {
    return x < 0.f ? alpha[0] * expm1f(x / alpha[0]) : x;
  }
};

}  // namespace extending
