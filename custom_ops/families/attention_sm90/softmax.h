// Masks and the online softmax of a warpgroup's scores, in registers.
#pragma once
#include "families/attention_sm90/shape.h"
#include "sm90/wgmma.h"

namespace onnxbolt {
namespace attention_sm90 {

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two values in the operands' type, the first in the lower half.
template <class Element>
__device__ uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<Element, cutlass::half_t>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// A thread's part of 64 queries: two rows, eight apart, in the order of sm90/wgmma.h.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY};  // a score about as high as the highest one so far
  float sum[2] = {0, 0};                  // sums of this thread's weights, relative to `top`
  float factor[2];                        // by which the last block scaled earlier sums
};

// The place of a thread's scores among all queries and keys.
template <class K>
class ScoreTile {
 public:
  using Element = typename K::Element;

  CUTLASS_DEVICE ScoreTile(const Params& params, const Work& work, int row, int key)
      : params_(params),
        work_(work),
        key_(key + threadIdx.x % 4 * 2),
        remaining_(params.keys - key) {
    const int thread = threadIdx.x % 128;
    row_ = row + thread / 32 * 16 + thread % 32 / 4;
  }

  // Adds the mask to scaled scores, or excludes what it does not keep. `copied`: the block's biases
  // (kKeys), or the item's copy of the mask. Edge: the block has keys beyond the last one, or
  // beyond the band of some query.
  template <int Width, bool Edge>
  CUTLASS_DEVICE void mask(float (&x)[Width / 2], const void* copied) const {
    if constexpr (K::kHasBiases) add_bias<Width>(x, static_cast<const float*>(copied));
    if constexpr (K::kMask == MaskForm::kAddedF32) add<Width, Edge, float>(x, copied);
    if constexpr (K::kMask == MaskForm::kAdded) add<Width, Edge, Element>(x, copied);
    if constexpr (K::kMask == MaskForm::kBoolean) exclude<Width, Edge>(x, copied);
    if constexpr (Edge) {
      constexpr int kSure = Width - 16;  // the last block usually has more keys than these
      if (!K::kBand && remaining_ >= kSure)
        cut<kSure, Width>(x);
      else
        cut<0, Width>(x);
    }
  }

 private:
  template <int Width>
  CUTLASS_DEVICE void add_bias(float (&x)[Width / 2], const float* bias) const {
    const float2* at = reinterpret_cast<const float2*>(bias) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < Width / 8; ++i) {
      const float2 added = at[4 * i];
      x[4 * i] = fmaf(x[4 * i], params_.scale_log2, added.x);
      x[4 * i + 1] = fmaf(x[4 * i + 1], params_.scale_log2, added.y);
      x[4 * i + 2] = fmaf(x[4 * i + 2], params_.scale_log2, added.x);
      x[4 * i + 3] = fmaf(x[4 * i + 3], params_.scale_log2, added.y);
    }
  }

  // The mask of row r at this thread's first key; of the last query if there are no more.
  template <class Value>
  CUTLASS_DEVICE const Value* values(int r, const void* copied) const {
    const ScoreMask& mask = params_.mask;
    const int query = min(row_ + 8 * r, params_.queries - 1);
    if (K::kCopiesMask && params_.copies_mask)
      return reinterpret_cast<const Value*>(static_cast<const char*>(copied) + work_.mask) +
             (query - work_.row) * params_.keys + key_;
    return static_cast<const Value*>(mask.data) + work_.batch * mask.batch +
           work_.head * mask.head + query * mask.query + key_;
  }

  template <bool Edge>
  CUTLASS_DEVICE bool exists(int column) const {
    return !Edge || key_ + column < params_.keys;
  }

  template <int Width, bool Edge, class Value>
  CUTLASS_DEVICE void add(float (&x)[Width / 2], const void* copied) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Value* at = values<Value>(r, copied);
#pragma unroll
      for (int i = 0; i < Width / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = x[4 * i + 2 * r + e];
          const float added =
              exists<Edge>(8 * i + e) ? static_cast<float>(at[8 * i + e]) : -INFINITY;
          score = fmaf(score, params_.scale, fmaxf(added, params_.excluded));
        }
    }
  }

  template <int Width, bool Edge>
  CUTLASS_DEVICE void exclude(float (&x)[Width / 2], const void* copied) const {
    const bool kept = params_.mask.kind == Masking::kKept;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint8_t* at = values<uint8_t>(r, copied);
#pragma unroll
      for (int i = 0; i < Width / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool set = exists<Edge>(8 * i + e) && at[8 * i + e] != 0;
          if (set != kept) x[4 * i + 2 * r + e] = params_.excluded;
        }
    }
  }

  // Excludes keys outside of the band, from column First on. Keys beyond the last one never count.
  template <int First, int Width>
  CUTLASS_DEVICE void cut(float (&x)[Width / 2]) const {
    const int keys = params_.keys - key_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int diagonal = row_ + 8 * r + params_.shift - key_;
      const int begin = diagonal + params_.first, end = diagonal + params_.last;
#pragma unroll
      for (int i = First / 8; i < Width / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * i + e;
          float& score = x[4 * i + 2 * r + e];
          if (K::kBand && (column < begin || column > end)) score = params_.excluded;
          if (column >= keys) score = -INFINITY;
        }
    }
  }

  const Params& params_;
  const Work& work_;
  int row_, key_;  // this thread's first ones
  int remaining_;  // keys from the block's first one on
};

// With kScalesSeldom, weights are at most 2^kSlack, far from the largest number of 16 bits: `top`
// need not follow every higher score.
constexpr float kSlack = 8;

// x becomes exp2(c (x - top)), and 0 for a key that counts for nothing; c makes scores exponents of
// 2. The statistics follow.
template <class K, int Width>
CUTLASS_DEVICE void Exponentiate(float (&x)[Width / 2], Rows& rows, const Params& params) {
  const float c = K::kHasBiases ? 1.f : K::kAdds ? kLog2E : params.scale_log2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top[2] = {rows.top[r], x[2 * r]};
#pragma unroll
    for (int i = 0; i < Width / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) top[e] = fmaxf(top[e], x[4 * i + 2 * r + e]);
    float highest = fmaxf(top[0], top[1]);
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    // false for -inf - -inf, which is NaN
    const bool grows = !K::kScalesSeldom || (highest - rows.top[r]) * c > kSlack;
    if (!grows) highest = rows.top[r];
    // a row without any key so far: -inf - -inf would be NaN
    const float base = K::kExcludes && highest == -INFINITY ? 0.f : highest;
    rows.factor[r] = grows ? Exp2((rows.top[r] - base) * c) : 1.f;
    rows.top[r] = highest;
    const float offset = base * c;
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < Width / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = x[4 * i + 2 * r + e];
        // products of huge scores may overflow, their difference does not
        score = Exp2(K::kHasBiases ? score - base
                     : K::kAdds    ? (score - base) * c
                                   : fmaf(score, c, -offset));
        sum[e] += score;
      }
    rows.sum[r] = fmaf(rows.sum[r], rows.factor[r], sum[0] + sum[1]);
  }
}

}  // namespace attention_sm90
}  // namespace onnxbolt
