// Steps of chains whose operands, or whose result, are codes of 8 bits
// (docs/decisions/quantized.md): value = (code - zero point) * scale. Parameters: the scale, then
// the zero point, if there is one.
//
// Values are multiplied by the reciprocal of the scale, which is as near as the quotient.
//
// `Packer`: a chain's last step, for four values: their codes, the first one in the lowest byte. A
// kernel makes it once. `Centred`: the zero point is known to be 0, which takes fewer instructions.
#pragma once
#include <cstdint>

#include "cutlass/array.h"
#include "cutlass/numeric_types.h"
#include "epilogue/steps.h"

namespace onnxbolt {
namespace epilogue {

// The value of a sum of products: params[0] is the scale of x, the vector those of the weights.
struct Dequantize : Step<Operand::kVector, 1> {
  __device__ static float apply(float x, float vector, const float* scale) {
    return x * (scale[0] * vector);
  }
};

// The value of a code, where no product is in front.
struct Decode : Step<Operand::kNone, 2> {
  __device__ static float apply(float x, float, const float* params) {
    return (x - params[1]) * params[0];
  }
};
struct DecodeI8 : Decode {};
struct DecodeU8 : Decode {};
struct DecodeE4M3 : Decode {};

// Adds the value of a code.
struct AddCodes : Step<Operand::kTensor, 2> {
  __device__ static float apply(float x, float code, const float* params) {
    return x + (code - params[1]) * params[0];
  }
};
struct AddCodesI8 : AddCodes {};
struct AddCodesU8 : AddCodes {};
struct AddCodesE4M3 : AddCodes {};

// Multiplies by the value of a code.
struct MulCodes : Step<Operand::kTensor, 2> {
  __device__ static float apply(float x, float code, const float* params) {
    return x * ((code - params[1]) * params[0]);
  }
};
struct MulCodesI8 : MulCodes {};
struct MulCodesU8 : MulCodes {};
struct MulCodesE4M3 : MulCodes {};

// In kernels of products, which multiply the scales of the weights by that of x, and subtract zero
// points of other operands, as they read them: the same numbers in fewer instructions.
struct DequantizeColumns : Step<Operand::kVector, 1> {
  __device__ static float apply(float x, float vector, const float*) { return x * vector; }
};
struct AddCentred : Step<Operand::kTensor, 2> {
  __device__ static float apply(float x, float code, const float* params) {
    return x + code * params[0];
  }
};
struct MulCentred : Step<Operand::kTensor, 2> {
  __device__ static float apply(float x, float code, const float* params) {
    return x * (code * params[0]);
  }
};

// Adds a value that another node wrote.
template <class ValueType>
struct AddValues : Step<Operand::kTensor> {
  using Value = ValueType;
  __device__ static float apply(float x, float value, const float*) { return x + value; }
};
struct AddF16 : AddValues<cutlass::half_t> {};
struct AddBF16 : AddValues<cutlass::bfloat16_t> {};
struct AddF32 : AddValues<float> {};

// The result so far is an output, too, of which the last step makes codes.
template <class ValueType>
struct StoreValues : Step<Operand::kNone> {
  using Value = ValueType;
  static constexpr bool kStores = true;
  __device__ static float apply(float x, float, const float*) { return x; }
};
struct StoreF16 : StoreValues<cutlass::half_t> {};
struct StoreBF16 : StoreValues<cutlass::bfloat16_t> {};
struct StoreF32 : StoreValues<float> {};

// Two values rounded to E4M3FN, saturated, the first one in the lower byte; NaN stays NaN.
__device__ inline uint16_t pack_e4m3(float first, float second) {
  uint16_t codes = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
#endif
  return codes;
}

__device__ inline float round_e4m3(float x) {
  return float(cutlass::float_e4m3_t::bitcast(static_cast<uint8_t>(pack_e4m3(x, 0.f))));
}

// GELU in front of codes of a product, where erff would take longer than the product.
struct GeluErfOfCodes : GeluErf {
  __device__ static float apply(float x, float, const float*) { return exact_gelu(x); }
};

// The codes of a word minus their zero point, exactly, without the conversion unit: a byte in the
// lowest place of 2^23 adds itself to it.
template <int Low>
struct IntegersOfWord {
  uint32_t bytes;  // the codes minus the least one
  float base;

  __device__ IntegersOfWord(uint32_t word, float zero)
      : bytes(Low < 0 ? word ^ 0x80808080u : word), base(8388608.f - Low + zero) {}

  __device__ float operator[](int place) const {
    return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u | place)) - base;
  }
};
// Codes of floating point have no zero point.
template <class Element>
struct CodesOfWord {
  uint32_t word;

  __device__ CodesOfWord(uint32_t word, float) : word(word) {}

  __device__ float operator[](int place) const {
    return float(Element::bitcast(static_cast<uint8_t>(word >> 8 * place)));
  }
};
template <>
struct CodesOfWord<int8_t> : IntegersOfWord<-128> {
  using IntegersOfWord<-128>::IntegersOfWord;
};
template <>
struct CodesOfWord<uint8_t> : IntegersOfWord<0> {
  using IntegersOfWord<0>::IntegersOfWord;
};

// Neighbouring values in fp32, codes of integers minus their zero point.
template <class Element, int N>
__device__ cutlass::Array<float, N> widened(const cutlass::Array<Element, N>& values, float zero) {
  cutlass::Array<float, N> result;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; ++i) {
    if constexpr (!std::is_integral_v<Element>)
      result[i] = float(values[i]);
    else if constexpr (N % 4 == 0)
      result[i] =
          CodesOfWord<Element>(reinterpret_cast<const uint32_t*>(&values)[i / 4], zero)[i % 4];
    else
      result[i] = float(values[i]) - zero;
  }
  return result;
}

// The nearest integer, of two the even one, without the conversion unit: 3 * 2^22 and a number of
// less than 2^22 have no room for a fraction. Larger ones stay large.
__device__ inline float rounded(float x) { return x + 12582912.f - 12582912.f; }

// Codes of integers from Low to High.
template <int Low, int High>
struct IntegerCodes : Step<Operand::kNone, 2> {
  __device__ static float code(float x, const float* params) {
    return clamp(rounded(x * (1.f / params[0])) + params[1], float(Low), float(High));
  }

  // An integer between the limits of int8 or uint8, after the zero point is added. Large values
  // saturate when they are converted, NaN becomes 0.
  struct Packer {
    float inverse;
    int zero;

    __device__ explicit Packer(const float* params)
        : inverse(1.f / params[0]), zero(static_cast<int>(params[1])) {}

    __device__ bool is_centred() const { return zero == 0; }

    template <bool Centred = false>
    __device__ uint32_t pack(float a, float b, float c, float d) const {
      return pack_two(convert<Centred>(a), convert<Centred>(b),
                      pack_two(convert<Centred>(c), convert<Centred>(d), 0));
    }

   private:
    // Conversion to 16 bits saturates far outside of the codes, whatever the zero point is. That to
    // 32 bits is one instruction for two values, together with `pack_two`.
    template <bool Centred>
    __device__ int convert(float x) const {
      if constexpr (Centred) {
        int rounded;
        asm("cvt.rni.s32.f32 %0, %1;" : "=r"(rounded) : "f"(x * inverse));
        return rounded;
      } else {
        int16_t rounded;
        asm("cvt.rni.s16.f32 %0, %1;" : "=h"(rounded) : "f"(x * inverse));
        return rounded + zero;
      }
    }
  };

 private:
  __device__ static uint32_t pack_two(int first, int second, uint32_t above) {
    uint32_t codes = 0;
#if __CUDA_ARCH__ >= 720
    if constexpr (Low < 0)
      asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
          : "=r"(codes)
          : "r"(second), "r"(first), "r"(above));
    else
      asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;"
          : "=r"(codes)
          : "r"(second), "r"(first), "r"(above));
#endif
    return codes;
  }
};

template <int Low, int High>
struct QuantizeIntegers : IntegerCodes<Low, High> {
  static constexpr bool kPacks = true;
  __device__ static float apply(float x, float, const float* params) {
    return IntegerCodes<Low, High>::code(x, params);
  }
};
struct QuantizeI8 : QuantizeIntegers<-128, 127> {};
struct QuantizeU8 : QuantizeIntegers<0, 255> {};

struct QuantizeE4M3 : Step<Operand::kNone, 2> {
  static constexpr bool kPacks = true;
  __device__ static float apply(float x, float, const float* params) {
    return clamp(x / params[0], -448.f, 448.f);
  }
  struct Packer {
    float inverse;

    __device__ explicit Packer(const float* params) : inverse(1.f / params[0]) {}

    __device__ static constexpr bool is_centred() { return true; }

    template <bool = false>
    __device__ uint32_t pack(float a, float b, float c, float d) const {
      return pack_e4m3(a * inverse, b * inverse) | uint32_t(pack_e4m3(c * inverse, d * inverse))
                                                       << 16;
    }
  };
};

// Codes, and their values again.
template <int Low, int High>
struct RequantizeIntegers : IntegerCodes<Low, High> {
  __device__ static float apply(float x, float, const float* params) {
    return (IntegerCodes<Low, High>::code(x, params) - params[1]) * params[0];
  }
};
struct RequantizeI8 : RequantizeIntegers<-128, 127> {};
struct RequantizeU8 : RequantizeIntegers<0, 255> {};

struct RequantizeE4M3 : Step<Operand::kNone, 2> {
  __device__ static float apply(float x, float, const float* params) {
    return round_e4m3(x * (1.f / params[0])) * params[0];
  }
};

}  // namespace epilogue
}  // namespace onnxbolt
