// The device's instructions that custom_ops/epilogue/ uses, for the host. An instruction that PTX
// defines exactly is exact here. The special-function unit's results are off by as much as the PTX
// ISA allows, above or below by the test's choice (`host_shift`), so that a bound which holds here
// holds on every GPU:
//   ex2.approx.ftz.f32 2^-22, rcp.approx.ftz.f32 2^-23, tanh.approx.f32 2^-10.987, __fdividef
//   2^-22.
// __hfma2 is rounded twice where fp64 cannot hold the sum: it then differs from fma.rn.f16x2 by at
// most one unit in the last place.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define EXPORT extern "C" __attribute__((visibility("default")))

static double shift = 0;  // -1, 0 or 1: where in the unit's error a result lies
EXPORT void host_shift(int to) { shift = to; }

inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}
inline float shifted(double exact, double error) {
  return static_cast<float>(exact * (1 + shift * error));
}

inline float __saturatef(float x) { return x > 0.f ? std::min(x, 1.f) : 0.f; }  // NaN gives 0
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32);
}
inline float __fdividef(float x, float y) {
  return std::fabs(y) > 0x1p126f && std::isfinite(y) ? 0.f
         : std::isinf(y)                             ? x * 0.f
                                                     : shifted(double(x) / y, 0x1p-22);
}

inline void ptx_ex2_approx_ftz_f32(float& y, float x) {
  y = flushed(shifted(std::exp2(double(flushed(x))), 0x1p-22));
}
inline void ptx_rcp_approx_ftz_f32(float& y, float x) {
  y = flushed(shifted(1 / double(flushed(x)), 0x1p-23));
}
inline void ptx_tanh_approx_f32(float& y, float x) {
  y = std::clamp(shifted(std::tanh(double(x)), std::exp2(-10.987)), -1.f, 1.f);
  if (std::isnan(x)) y = x;
}
inline void ptx_max_NaN_f32(float& larger, float x, float y) {
  larger =
      std::isnan(x) || std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : std::max(x, y);
}

// The first operand is the upper half.
inline void ptx_cvt_rn_relu_f16x2_f32(uint32_t& pair, float upper, float lower) {
  const auto positive = [](float x) { return x > 0.f || std::isnan(x) ? x : 0.f; };
  const __half2 values{__float2half_rn(positive(lower)), __float2half_rn(positive(upper))};
  std::memcpy(&pair, &values, sizeof pair);
}
inline void ptx_cvt_rn_relu_bf16x2_f32(uint32_t& pair, float upper, float lower) {
  const auto positive = [](float x) { return x > 0.f || std::isnan(x) ? x : 0.f; };
  const __nv_bfloat162 values{__float2bfloat16_rn(positive(lower)),
                              __float2bfloat16_rn(positive(upper))};
  std::memcpy(&pair, &values, sizeof pair);
}
inline void ptx_cvt_rn_satfinite_f16x2_f32(uint32_t& pair, float upper, float lower) {
  const auto finite = [](float x) { return std::isnan(x) ? x : std::clamp(x, -65504.f, 65504.f); };
  const __half2 values{__float2half_rn(finite(lower)), __float2half_rn(finite(upper))};
  std::memcpy(&pair, &values, sizeof pair);
}

// Half way between two integers goes to the even one; the ends of the range are kept, NaN gives 0.
inline void ptx_cvt_rni_s16_f32(int16_t& y, float x) {
  y = std::isnan(x) ? 0 : static_cast<int16_t>(std::rint(std::clamp(x, -32768.f, 32767.f)));
}
inline void ptx_cvt_rni_s32_f32(int& y, float x) {
  const double rounded = std::rint(double(x));
  y = std::isnan(x) ? 0 : static_cast<int>(std::clamp(rounded, -2147483648., 2147483647.));
}
// The first operand is the upper byte of two, in front of which are the lower two of `above`.
template <int Low, int High>
inline uint32_t packed_bytes(int upper, int lower, uint32_t above) {
  const auto byte = [](int x) { return static_cast<uint8_t>(std::clamp(x, Low, High)); };
  return above << 16 | static_cast<uint32_t>(byte(upper)) << 8 | byte(lower);
}
inline void ptx_cvt_pack_sat_s8_s32_b32(uint32_t& y, int upper, int lower, uint32_t above) {
  y = packed_bytes<-128, 127>(upper, lower, above);
}
inline void ptx_cvt_pack_sat_u8_s32_b32(uint32_t& y, int upper, int lower, uint32_t above) {
  y = packed_bytes<0, 255>(upper, lower, above);
}
inline void ptx_cvt_rn_satfinite_e4m3x2_f32(uint16_t& pair, float upper, float lower) {
  const auto code = [](float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); };
  pair = static_cast<uint16_t>(code(upper) << 8 | code(lower));
}

inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
// The bytes of two words that the selector's digits number, the last one lowest.
inline uint32_t __byte_perm(uint32_t lower, uint32_t upper, uint32_t selector) {
  uint32_t y = 0;
  for (int i = 0; i < 4; ++i) {
    const int place = selector >> 4 * i & 7;
    y |= ((place < 4 ? lower >> 8 * place : upper >> 8 * (place - 4)) & 0xff) << 8 * i;
  }
  return y;
}

inline __half fma_of_halves(__half a, __half b, __half c) {
  return __double2half(double(__half2float(a)) * double(__half2float(b)) + double(__half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {fma_of_halves(__low2half(a), __low2half(b), __low2half(c)),
          fma_of_halves(__high2half(a), __high2half(b), __high2half(c))};
}
inline __half2 __hfma2_sat(__half2 a, __half2 b, __half2 c) {
  const auto saturated = [](__half x) { return __float2half_rn(__saturatef(__half2float(x))); };
  const __half2 sum = __hfma2(a, b, c);
  return {saturated(__low2half(sum)), saturated(__high2half(sum))};
}
