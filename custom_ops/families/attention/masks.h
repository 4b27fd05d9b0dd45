// Masks and bands, as the values at which a thread's scores begin: products of queries and keys are
// added to them. A score is in units of q k, without the scale.
//
// Excluded keys begin at -inf, or, for Masked::kPlain, at a huge negative number that no product
// moves. Keys beyond the last one begin at -inf.
#pragma once
#include "families/attention/shape.h"

namespace onnxbolt {
namespace attention {

// Added numbers below it exclude a key, since no score makes up for them: they count as kExcluded.
// Such are -3.4e38, -1e9 and -1e30; of fp16, none.
constexpr float kLeastAdded = -0x1p20f;

template <class S>
using ScoreTiles = float[S::kRowTiles][S::kScoreTiles][4];

template <class S>
class Masks {
 public:
  // A mask's value as it is stored.
  using Value = cutlass::platform::conditional_t<
      S::kMask == kBooleans, uint8_t,
      cutlass::platform::conditional_t<S::kMask == kAddsElements, typename S::Element, float>>;

  __device__ Masks(const Params& params, const Place& place, int first_query)
      : params_(params),
        first_(first_query),
        base_(place.batch % params.mask.period * params.mask.batch +
              place.head * params.mask.head) {}

  // The values at which the scores of a tile of keys begin.
  __device__ void begin(ScoreTiles<S>& scores, int tile) const {
    const int lane = threadIdx.x % mma::kWarp, column = tile * S::kKeys + 2 * (lane % 4);
    const int row = first_ + lane / 4;
    const bool tail = (tile + 1) * S::kKeys > params_.keys;
    if constexpr (S::kMask != kUnmasked) {
      params_.mask.query == 0 ? read<true>(scores, row, column) : read<false>(scores, row, column);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < sizeof(scores) / sizeof(float); ++i) scores[0][0][i] = 0;
    }
    if (S::kBanded && crosses_band(tile)) {
      each(scores, row, column, [&](float& score, int i, int j) {
        if (!in_band(i, j)) score = params_.excluded;
      });
    }
    if (tail) {
      each(scores, row, column, [&](float& score, int, int j) {
        if (j >= params_.keys) score = -INFINITY;
      });
    }
  }

  // True if a key of the tile is not excluded for all queries, by a mask that is the same for all
  // of them. All lanes of a warp call it together.
  __device__ bool keeps(int tile) const {
    bool found = false;
    for (int k = threadIdx.x % mma::kWarp; k < S::kKeys; k += mma::kWarp) {
      const int j = tile * S::kKeys + k;
      if (j < params_.keys) found |= start(*data(j * params_.mask.key)) > Params::kExcluded;
    }
    return __any_sync(0xffffffff, found);
  }

 private:
  template <class Visit>
  __device__ static void each(ScoreTiles<S>& scores, int row, int column, Visit visit) {
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < S::kRowTiles; ++t) {
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < S::kScoreTiles; ++n) {
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < 4; ++e)
          visit(scores[t][n][e], row + 16 * t + e / 2 * 8, column + 8 * n + e % 2);
      }
    }
  }

  // PerKey: the mask is the same for all queries. Places beyond the last query or key read that
  // one.
  template <bool PerKey>
  __device__ void read(ScoreTiles<S>& scores, int row, int column) const {
    const ScoreMask& mask = params_.mask;
    const int key = static_cast<int>(mask.key), last = params_.keys - 1;
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < (PerKey ? 1 : S::kRowTiles); ++t) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < (PerKey ? 1 : 2); ++r) {
        const Value* values = data(min(row + 16 * t + 8 * r, params_.queries - 1) * mask.query);
        CUTLASS_PRAGMA_UNROLL
        for (int n = 0; n < S::kScoreTiles; ++n) {
          CUTLASS_PRAGMA_UNROLL
          for (int e = 0; e < 2; ++e)
            scores[t][n][2 * r + e] = start(values[int64_t(min(column + 8 * n + e, last)) * key]);
        }
      }
    }
    if constexpr (PerKey) {
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < S::kRowTiles; ++t) {
        CUTLASS_PRAGMA_UNROLL
        for (int n = 0; n < S::kScoreTiles; ++n) {
          CUTLASS_PRAGMA_UNROLL
          for (int e = 0; e < 4; ++e) scores[t][n][e] = scores[0][n][e % 2];
        }
      }
    }
  }

  // The block's mask from `offset` on.
  __device__ const Value* data(int64_t offset) const {
    return static_cast<const Value*>(params_.mask.data) + base_ + offset;
  }

  // The score's start, by a value of the mask.
  __device__ float start(Value value) const {
    if constexpr (S::kMask == kBooleans) {
      const bool kept = (value != 0) != (params_.mask.kind == Masking::kDropped);
      return kept ? 0.f : params_.excluded;
    } else if constexpr (cutlass::platform::is_same<Value, cutlass::half_t>::value) {
      return float(value) * params_.inverse_scale;
    } else {
      const float number(value), huge = number == -INFINITY ? number : Params::kExcluded;
      return number < kLeastAdded ? huge : number * params_.inverse_scale;
    }
  }

  __device__ bool in_band(int i, int j) const {
    const int distance = j - i - params_.shift;
    return params_.first <= distance && distance <= params_.last;
  }

  // True unless all of the warp's queries read all keys of the tile, as far as the band goes.
  __device__ bool crosses_band(int tile) const {
    const int key = tile * S::kKeys;
    return !in_band(first_ + S::kRows - 1, key) || !in_band(first_, key + S::kKeys - 1);
  }

  const Params& params_;
  const int first_;
  const int64_t base_;
};

// The tiles of keys that a block visits: first those in which one of its queries reads a key. The
// rest can matter only where all keys of a query are excluded and a mean of all values is asked
// for. Blocks that divide the keys take turns with the tiles.
template <class S>
class Visits {
 public:
  __device__ Visits(const Params& params, int query, const uint8_t* kept, int rank)
      : tiles_(params.key_tiles), end_(params.key_tiles), rank_(rank), kept_(kept) {
    if constexpr (S::kBanded) {
      const int last_query = min(query + S::kQueries, params.queries) - 1;
      const int64_t from = int64_t(query) + params.shift + params.first,
                    to = int64_t(last_query) + params.shift + params.last;
      const int64_t keys = params.keys;
      if (params.first != INT_MIN && from > 0) begin_ = int(min(from, keys) / S::kKeys);
      if (params.last != INT_MAX) end_ = to < 0 ? 0 : int(min(to, keys - 1) / S::kKeys) + 1;
    }
  }

  // Goes on with the tiles that no block has visited, once; false if there are none.
  __device__ bool turn_to_rest() {
    if (rest_ || (S::kMask == kUnmasked && !S::kBanded)) return false;
    rest_ = true;
    return !is_over(following(-1, 1));
  }

  __device__ int first() const { return following(-1, S::kSplits > 1 ? rank_ + 1 : 1); }

  // The next tile; at the end, the number of all tiles or a larger one.
  __device__ int after(int tile) const { return following(tile, S::kSplits); }

  __device__ bool is_over(int tile) const { return tile >= tiles_; }

 private:
  // The `count`-th of all blocks' tiles behind `tile`.
  __device__ int following(int tile, int count) const {
    if constexpr (S::kMask == kUnmasked && !S::kBanded) {
      tile += count;
    } else {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; count > 0; --count) {
        ++tile;
        if (!rest_ && tile < begin_) tile = begin_;
        while (tile < tiles_ && is_chosen(tile) == rest_)
          tile = rest_ || tile < end_ ? tile + 1 : tiles_;
      }
    }
    return tile;
  }

  __device__ bool is_chosen(int tile) const {
    const bool kept = S::kMask == kUnmasked || !kept_ || tile >= kMostTiles || kept_[tile];
    return begin_ <= tile && tile < end_ && kept;
  }

  int tiles_, begin_ = 0, end_, rank_;
  const uint8_t* kept_;
  bool rest_ = false;
};

}  // namespace attention
}  // namespace onnxbolt
