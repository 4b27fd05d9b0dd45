// An epilogue step of an extension: x sigmoid(1.702 x), which CLIP has for GELU.
#pragma once
#include "epilogue/steps.h"

namespace quick_gelu {

struct QuickGelu : onnxbolt::epilogue::Step<onnxbolt::epilogue::Operand::kNone> {
  __device__ static float apply(float x, float, const float*) {
    return x * onnxbolt::epilogue::sigmoid(1.702f * x);
  }
};

}  // namespace quick_gelu
