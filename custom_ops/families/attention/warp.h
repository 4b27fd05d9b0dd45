// A warp's queries: their scores for a tile of keys, the softmax, and the sums of values.
//
// Scores stay in registers, and become the first operand of the second product there: a thread has
// the same rows and columns of both fragments, if TF32's columns 2 i and 2 i + 1 change places with
// i and i + 4, which the values' rows then do as well.
#pragma once
#include "families/attention/masks.h"

namespace onnxbolt {
namespace attention {

// Operands as the tensor cores take them.
template <class Element>
__device__ void Round(uint32_t (&words)[4]) {
  if constexpr (sizeof(Element) == 4) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = mma::RoundToTf32(words[i]);
  }
}

// The largest value, and the sum, of the four lanes that have a row.
__device__ inline float RowTop(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float RowSum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The scaled score that weights' exponents are relative to, by a row's largest score.
__device__ inline float ScaledTop(float top, float c) {
  return top == -INFINITY ? 0.f : __fmul_rn(top, c);
}

// Stores a unit of 16 bytes of a row: the elements from column `begin` on, those before `columns`.
template <class S>
__device__ void StoreUnit(typename S::Element* to, const char* unit, int begin, int columns) {
  using Element = typename S::Element;
  CUTLASS_PRAGMA_UNROLL
  for (int part = 0; part < S::kOfUnit; part += S::kWidth) {
    using Access = cutlass::AlignedArray<Element, S::kWidth>;
    if (begin + part >= columns) continue;
    auto values = *reinterpret_cast<const Access*>(unit + part * sizeof(Element));
    *reinterpret_cast<Access*>(to + part) = values;
  }
}

template <class S>
class Warp {
 public:
  using Element = typename S::Element;

  __device__ explicit Warp(const Params& params)
      : params_(params), lane_(threadIdx.x % mma::kWarp) {
    // matrices of two tiles of keys: the first tile's halves, then the second tile's
    key_row_ = (lane_ / 16 * 8 + lane_ % 8) * S::kPitch + lane_ / 8 % 2 * mma::kUnit;
    // matrices of two tiles of columns: keys 0-7 and 8-15 of the first one, then of the second
    value_row_ = sizeof(Element) == 2
                     ? lane_ % 16 * S::kValuePitch + lane_ / 16 * mma::kUnit
                     : lane_ % 4 * 2 * S::kValuePitch + lane_ / 4 * int(sizeof(Element));
  }

  // Begins with other queries, the warp's rows in shared memory. They are there when hold_queries
  // is called.
  __device__ void begin(char* queries) {
    queries_ = queries;
    // matrices of a query's step: rows 0-7 and 8-15 of its first half, then of its second half
    query_rows_ = mma::SharedAddress(queries) + lane_ % 16 * S::kPitch + lane_ / 16 * mma::kUnit;
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < S::kRowTiles; ++t) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) top_[t][r] = -INFINITY, sum_[t][r] = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < S::kOutputTiles * 4; ++i) output_[t][i / 4][i % 4] = 0;
    }
  }

  // Takes the queries into registers, if there is room.
  __device__ void hold_queries() {
    if constexpr (S::kHeld) {
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < S::kSizeSteps; ++step) load_queries(held_[step], step);
    }
  }

  // Adds products of the queries and a tile's keys to `scores`.
  __device__ void add_scores(ScoreTiles<S>& scores, const char* keys) const {
    const uint32_t row = mma::SharedAddress(keys) + key_row_;
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < S::kSizeSteps; ++step) {
      Queries loaded;
      const Queries& queries = [&]() -> const Queries& {
        if constexpr (S::kHeld) return held_[step];
        load_queries(loaded, step);
        return loaded;
      }();
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < S::kScoreTiles; n += 2) {
        uint32_t b[4];
        mma::LoadMatrices(b, row + n * 8 * S::kPitch + step * mma::kStep);
        Round<Element>(b);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < S::kRowTiles; ++t) {
          mma::Multiply<Element, S::kDepth>(scores[t][n], queries[t], b[0], b[1]);
          if (n + 1 < S::kScoreTiles)
            mma::Multiply<Element, S::kDepth>(scores[t][n + 1], queries[t], b[2], b[3]);
        }
      }
    }
  }

  // Scores become weights exp(scale (s - top)) of the largest score so far; what was summed before
  // shrinks to it.
  __device__ void weigh(ScoreTiles<S>& scores, bool is_first) {
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < S::kRowTiles; ++t) {
      float factor[2];
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        float top = top_[t][r];
        CUTLASS_PRAGMA_UNROLL
        for (int n = 0; n < S::kScoreTiles; ++n)
          top = fmaxf(top, fmaxf(scores[t][n][2 * r], scores[t][n][2 * r + 1]));
        top = RowTop(top);
        const float offset = ScaledTop(top, params_.c);
        factor[r] = mma::Exp2(__fmul_rn(top_[t][r], params_.c) - offset);
        top_[t][r] = top;
        float sum = 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < S::kScoreTiles * 2; ++i) {
          float& score = scores[t][i / 2][2 * r + i % 2];
          score = mma::Exp2(fmaf(score, params_.c, -offset));
          sum += score;
        }
        sum_[t][r] = is_first ? sum : sum_[t][r] * factor[r] + sum;
      }
      if (is_first) continue;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < S::kOutputTiles * 4; ++i) output_[t][i / 4][i % 4] *= factor[i / 2 % 2];
    }
  }

  // Adds the tile's values, weighted.
  __device__ void add_values(const ScoreTiles<S>& weights, const char* values) {
    const uint32_t row = mma::SharedAddress(values) + value_row_;
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < S::kKeySteps; ++step) {
      uint32_t a[S::kRowTiles][4];
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < S::kRowTiles; ++t) operand(a[t], weights[t], step);
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < S::kOutputTiles; n += 2) {
        uint32_t b[4];
        load_values(b, row + step * S::kOfStep * S::kValuePitch, n);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < S::kRowTiles; ++t) {
          mma::Multiply<Element, S::kDepth>(output_[t][n], a[t], b[0], b[1]);
          if (n + 1 < S::kOutputTiles)
            mma::Multiply<Element, S::kDepth>(output_[t][n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  // True if one of the thread's first `rows` rows has read excluded keys alone.
  __device__ bool lacks_keys(int rows) const {
    bool lacks = false;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kRowTiles * 2; ++i)
      lacks |= 8 * i + lane_ / 4 < rows && !(top_[i / 2][i % 2] > Params::kExcluded);
    return lacks;
  }

  // Divides by the sums, and writes the warp's first `rows` rows of `columns` elements, of which
  // row i begins at y(i). The rows in shared memory, whose queries are not read any more, make
  // accesses of 16 bytes of them.
  template <class Rows>
  __device__ void store(const Rows& y, int rows, int columns) {
    __syncwarp();  // all lanes have read the queries
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kRowTiles * 2; ++i) {
      const int t = i / 2, r = i % 2;
      const float sum = RowSum(sum_[t][r]), inverse = sum == 0 ? params_.unread : 1.f / sum;
      auto row = reinterpret_cast<Element*>(queries_ + (8 * i + lane_ / 4) * S::kValuePitch);
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < S::kOutputTiles; ++n)
        put(row + 8 * n + 2 * (lane_ % 4), output_[t][n][2 * r] * inverse,
            output_[t][n][2 * r + 1] * inverse);
    }
    __syncwarp();
    constexpr int kUnits = S::kValueSize / S::kOfUnit;
    CUTLASS_PRAGMA_UNROLL
    for (int i = lane_; i < S::kRows * kUnits; i += mma::kWarp) {
      const int row = i / kUnits, unit = i % kUnits;
      if (row >= rows) break;
      char* from = queries_ + row * S::kValuePitch + unit * mma::kUnit;
      Element* to = y(row) + unit * S::kOfUnit;
      StoreUnit<S>(to, from, unit * S::kOfUnit, columns);
    }
  }

  // Puts the largest score of each of the warp's rows at to[row].
  __device__ void put_tops(float* to) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kRowTiles * 2; ++i) {
      if (lane_ % 4 == 0) to[8 * i + lane_ / 4] = top_[i / 2][i % 2];
    }
  }

  // Puts the weighted sums of values into rows of kSumPitch floats, and for each row its largest
  // score and the sum of its weights into `states`.
  __device__ void put_sums(float* sums, float2* states) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kRowTiles * 2; ++i) {
      const int t = i / 2, r = i % 2, row = 8 * i + lane_ / 4;
      const float sum = RowSum(sum_[t][r]);
      if (lane_ % 4 == 0) states[row] = {top_[t][r], sum};
      float* const to = sums + row * S::kSumPitch + 2 * (lane_ % 4);
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < S::kOutputTiles; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = {output_[t][n][2 * r], output_[t][n][2 * r + 1]};
    }
  }

 private:
  using Queries = uint32_t[S::kRowTiles][4];

  __device__ void load_queries(Queries& queries, int step) const {
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < S::kRowTiles; ++t) {
      mma::LoadMatrices(queries[t], query_rows_ + t * 16 * S::kPitch + step * mma::kStep);
      Round<Element>(queries[t]);
    }
  }

  // Values of a step's keys at two tiles of 8 columns.
  __device__ static void load_values(uint32_t (&b)[4], uint32_t row, int n) {
    if constexpr (sizeof(Element) == 2) {
      mma::LoadTransposed(b, row + n * mma::kUnit);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (n + i / 2 < S::kOutputTiles)
          b[i] =
              mma::LoadWord(row + i % 2 * S::kValuePitch + (n + i / 2) * 8 * int(sizeof(Element)));
      }
      Round<Element>(b);
    }
  }

  // The weights of a step's keys as the product's first operand; zeros beyond the tile.
  __device__ static void operand(uint32_t (&a)[4], const float (&weights)[S::kScoreTiles][4],
                                 int step) {
    if constexpr (sizeof(Element) == 2) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * step + i / 2;
        a[i] = n < S::kScoreTiles
                   ? mma::Pack<Element>(weights[n][i % 2 * 2], weights[n][i % 2 * 2 + 1])
                   : 0;
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = __float_as_uint(weights[step][i % 2 * 2 + i / 2]);
      Round<Element>(a);
    }
  }

  __device__ static void put(Element* to, float first, float second) {
    if constexpr (sizeof(Element) == 2) {
      *reinterpret_cast<uint32_t*>(to) = mma::Pack<Element>(first, second);
    } else {
      *reinterpret_cast<float2*>(to) = {first, second};
    }
  }

  const Params& params_;
  char* queries_;
  const int lane_;
  uint32_t query_rows_, key_row_, value_row_;
  Queries held_[S::kHeld ? S::kSizeSteps : 1];
  float output_[S::kRowTiles][S::kOutputTiles][4];
  float top_[S::kRowTiles][2], sum_[S::kRowTiles][2];
};

}  // namespace attention
}  // namespace onnxbolt
