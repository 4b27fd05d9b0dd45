// The steps of custom_ops/epilogue/steps.h, each in its forms, on arrays. STEPS(X) names them all:
// X(Bias) X(Scale) ..
#include "intrinsics.h"
// here come the headers of custom_ops/epilogue/
#include "profiler/steps.h"

namespace {

using namespace onnxbolt::epilogue;

enum Form { kApply, kApproximate, kFinishHalf, kFinishBfloat };

template <class S, class Output>
bool Finish(const float* x, int count, uint16_t* y) {
  if constexpr (S::template kFinishes<Output>) {
    for (int i = 0; i + 1 < count; i += 2) {
      const Pair pair = S::template finish<Output>(x[i], x[i + 1]);
      std::memcpy(y + i, &pair, sizeof pair);
    }
    return true;
  } else {
    return false;
  }
}

template <class S>
bool Run(int form, const float* x, const float* operand, const float* params, int count, void* y) {
  if (form == kFinishHalf) return Finish<S, cutlass::half_t>(x, count, static_cast<uint16_t*>(y));
  if (form == kFinishBfloat)
    return Finish<S, cutlass::bfloat16_t>(x, count, static_cast<uint16_t*>(y));
  if (form == kApproximate) {
    if constexpr (S::kApproximable) {
      for (int i = 0; i < count; ++i)
        static_cast<float*>(y)[i] = S::approximate(x[i], operand[i], params);
    }
    return S::kApproximable;
  }
  for (int i = 0; i < count; ++i) static_cast<float*>(y)[i] = S::apply(x[i], operand[i], params);
  return true;
}

}  // namespace

// False where the step has no such form. A finished result has 16 bits, the others are floats;
// `count` is even.
EXPORT bool host_step(const char* name, int form, const float* x, const float* operand,
                      const float* params, int count, void* y) {
#define RUN(Name)                \
  if (!std::strcmp(name, #Name)) \
    return Run<onnxbolt::epilogue::Name>(form, x, operand, params, count, y);
  STEPS(RUN)
  return false;
}

// The codes of values, four in each word, `centred`: where the zero point is known to be 0; false
// if the step does not end a chain.
EXPORT bool host_pack(const char* name, const float* x, const float* params, bool centred,
                      int count, uint32_t* y) {
#define PACK(Name)                                                                 \
  if (!std::strcmp(name, #Name)) {                                                 \
    const onnxbolt::epilogue::Name::Packer packer(params);                         \
    for (int i = 0; i + 3 < count; i += 4)                                         \
      y[i / 4] = centred ? packer.pack<true>(x[i], x[i + 1], x[i + 2], x[i + 3])   \
                         : packer.pack<false>(x[i], x[i + 1], x[i + 2], x[i + 3]); \
    return packer.is_centred() || !centred;                                        \
  }
  PACK(QuantizeI8)
  PACK(QuantizeU8)
  PACK(QuantizeE4M3)
  return false;
}

// The codes of a word minus their zero point, in the order of its bytes.
EXPORT void host_codes(char type, uint32_t word, float zero, float* y) {
  const auto read = [&](const auto& codes) {
    for (int place = 0; place < 4; ++place) y[place] = codes[place];
  };
  if (type == 'b') read(onnxbolt::epilogue::CodesOfWord<int8_t>(word, zero));
  if (type == 'B') read(onnxbolt::epilogue::CodesOfWord<uint8_t>(word, zero));
  if (type == 'f') read(onnxbolt::epilogue::CodesOfWord<cutlass::float_e4m3_t>(word, zero));
}

// 0: none, 1: a vector, 2: a tensor; -1: no such step.
EXPORT int host_operand(const char* name) {
#define OPERAND(Name) \
  if (!std::strcmp(name, #Name)) return static_cast<int>(onnxbolt::epilogue::Name::kOperand);
  STEPS(OPERAND)
  return -1;
}
EXPORT int host_params(const char* name) {
#define PARAMS(Name) \
  if (!std::strcmp(name, #Name)) return onnxbolt::epilogue::Name::kParams;
  STEPS(PARAMS)
  return -1;
}

// Computes a step by the tuner's reference; false if the reference does not have it.
EXPORT bool host_reference(const char* name, const double* x, const double* operand,
                           const float* params, int count, double* y) {
  for (const auto& row : onnxbolt::profiler::kStepRows) {
    if (std::strcmp(name, row.name)) continue;
    for (int i = 0; i < count; ++i)
      y[i] = onnxbolt::profiler::ReferenceStep(row.code, x[i], operand[i], params);
    return true;
  }
  return false;
}
// The same with a bound of errors: those of x go in.
EXPORT bool host_bounded(const char* name, const double* x, const double* operand,
                         const float* params, double rounding, double own, int count, double* y,
                         double* errors) {
  for (const auto& row : onnxbolt::profiler::kStepRows) {
    if (std::strcmp(name, row.name)) continue;
    for (int i = 0; i < count; ++i) {
      const auto found = onnxbolt::profiler::BoundedStep(row.code, {x[i], errors[i]}, operand[i],
                                                         params, rounding, own);
      y[i] = found.value, errors[i] = found.error;
    }
    return true;
  }
  return false;
}
EXPORT int host_reference_operand(const char* name) {
  for (const auto& row : onnxbolt::profiler::kStepRows) {
    if (!std::strcmp(name, row.name)) return static_cast<int>(row.kind);
  }
  return -1;
}
EXPORT int host_reference_params(const char* name) {
  for (const auto& row : onnxbolt::profiler::kStepRows) {
    if (!std::strcmp(name, row.name)) return row.params;
  }
  return -1;
}
