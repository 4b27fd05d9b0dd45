// A consumer warpgroup of attention: 64 queries of an item.
#pragma once
#include "families/attention_sm90/softmax.h"
#include "runtime/dependent_launch.h"
#include "sm90/tma.h"
#include "sm90/wgmma_registers.h"

namespace onnxbolt {
namespace attention_sm90 {

__device__ inline void ArriveThreads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The block's hardware barriers: one of each warpgroup, and one for its turn.
constexpr int kGroupBarrier = 1, kTurnBarrier = 8;

// How it works. With overlap, the values of a block of keys are multiplied together with the scores
// of the next block; the softmax of the one runs under the products of the other:
//
//     scores(0)  softmax(0)
//     scores(1)  values(0)   softmax(1)
//     scores(2)  values(1)   softmax(2)  ..  values(last)
//
// Without overlap a block is finished before the next one, which takes fewer registers: other
// warpgroups then run under its softmax.
//
// Turns. Warpgroups take turns in starting products, so that those of one run under the softmax of
// another. A turn is a named barrier of 256 threads: the 128 that wait for their turn, and the 128
// that arrive when theirs is over. Every warpgroup takes one turn for each block of keys of each
// item, also if it has no queries. Within a turn a warpgroup waits for values(j - 1) alone, whose
// copy waits for values(j - 1 - kStages) of all warpgroups: these have begun and end without
// another turn. So turns always end.
template <class K>
class Consumer {
 public:
  using Element = typename K::Element;
  using Shared = typename K::Shared;

  CUTLASS_DEVICE Consumer(const Params& params, Shared& shared, int group)
      : params_(params), shared_(shared), group_(group), thread_(threadIdx.x % 128) {}

  CUTLASS_DEVICE void run() {
    WaitForPredecessors();  // the kernel before may read the memory where results are stored
    if (K::kTakesTurns && group_ == K::kConsumers - 1) end_turn();  // the first one's begins
    while (consume()) {
    }
    if (thread_ == 0) WaitForStores<0>();
  }

 private:
  using Sums = Accumulators<K::kValueSize>;

  // The weights of a block as the second product's operand, and the result's sums.
  struct Tile {
    uint32_t weights[K::kKeys / 4];
    Sums sums;
    Rows rows;
  };

  // An item. Returns false if there are none any more.
  CUTLASS_DEVICE bool consume() {
    shared_.q_full[queries_.stage].wait(queries_.parity);
    const Work& work = shared_.work[queries_.stage];
    if (work.blocks == 0) return false;
    if (group_ >= work.idle) {
      const int row = work.row + (group_ - work.idle) * kRows;
      Tile tile;
      attend(tile, work, row);
      store(tile, work, row);
    } else {
      release_queries();
      pass(work.blocks);
      stored_ = queries_.stage;
      release_queries();
    }
    queries_.advance();
    return true;
  }

  // Takes part in the rings and turns without queries. It waits for each block with all warps: an
  // early arrival would count for another block, and a late warp would miss a phase.
  CUTLASS_DEVICE void pass(int blocks) {
    for (int block = 0; block < blocks; ++block) {
      shared_.k_full[keys_.stage].wait(keys_.parity);
      begin_turn();
      end_turn();
      shared_.v_full[values_.stage].wait(values_.parity);
      SyncThreads(kGroupBarrier + group_, 128);
      release_keys();
      release_values();
    }
  }

  CUTLASS_DEVICE void attend(Tile& tile, const Work& work, int row) {
    int block = work.first;
    const int last = block + work.blocks - 1;
    if (block == last) {
      finish<true>(tile, work, row, last);
    } else {
      visit<true>(tile, work, row, block);
      while (++block < last) visit<false>(tile, work, row, block);
      finish<false>(tile, work, row, last);
    }
  }

  template <bool First>
  CUTLASS_DEVICE void visit(Tile& tile, const Work& work, int row, int block) {
    const int key = block * K::kKeys;
    if (is_whole(row, key))
      step<K::kKeys, false, First>(tile, work, row, key);
    else
      step<K::kKeys, true, First>(tile, work, row, key);
  }

  // The item's last block. If it is the last one of all keys, it may be shorter than the others.
  template <bool First>
  CUTLASS_DEVICE void finish(Tile& tile, const Work& work, int row, int block) {
    const int key = block * K::kKeys;
    if (K::kLastKeys < K::kKeys && params_.keys - key <= K::kLastKeys) {
      step<K::kLastKeys, true, First>(tile, work, row, key);
      if constexpr (K::kOverlaps) multiply_last_values<K::kLastKeys, First>(tile);
    } else {
      visit<First>(tile, work, row, block);
      if constexpr (K::kOverlaps) multiply_last_values<K::kKeys, First>(tile);
    }
  }

  template <int Width, bool First>
  CUTLASS_DEVICE void multiply_last_values(Tile& tile) {
    multiply_values<Width>(tile, !First);
    finish_values(tile);
  }

  // True if each of the 64 queries reads each key of the block, as far as the mask keeps it.
  CUTLASS_DEVICE bool is_whole(int row, int key) const {
    bool whole = K::kHasBiases || key + K::kKeys <= params_.keys;
    if constexpr (K::kBand) {
      whole = whole && key + K::kKeys <= params_.keys;
      const int first = key - (row + kRows - 1) - params_.shift,
                last = key + K::kKeys - 1 - row - params_.shift;
      whole = whole && first >= params_.first && last <= params_.last;
    }
    return whole;
  }

  // Scores and softmax of a block, and the values of this block or, with overlap, of the one
  // before.
  template <int Width, bool Edge, bool First>
  CUTLASS_DEVICE void step(Tile& tile, const Work& work, int row, int key) {
    constexpr bool kUnder = K::kOverlaps && !First;  // the values before are multiplied meanwhile
    Accumulators<Width> scores;
    shared_.k_full[keys_.stage].wait(keys_.parity);
    begin_turn();
    BeginProducts();
    multiply_keys<Width>(scores);
    if constexpr (kUnder) multiply_values<K::kKeys>(tile, key > (work.first + 1) * K::kKeys);
    end_turn();
    if constexpr (First) release_queries();
    WaitForProducts<kUnder ? 1 : 0>();
    PinAccumulators(scores);
    mask<Width, Edge>(scores, work, row, key);
    release_keys();
    Exponentiate<K, Width>(scores, tile.rows, params_);
    if constexpr (kUnder) finish_values(tile);
    if constexpr (!First) rescale(tile);
#pragma unroll
    for (int i = 0; i < Width / 4; ++i)
      tile.weights[i] = Pack<Element>(scores[2 * i], scores[2 * i + 1]);
    if constexpr (!K::kOverlaps) {
      multiply_values<Width>(tile, !First);
      finish_values(tile);
    }
  }

  template <int Width, bool Edge>
  CUTLASS_DEVICE void mask(Accumulators<Width>& scores, const Work& work, int row, int key) const {
    const ScoreTile<K> place(params_, work, row, key);
    if constexpr (K::kHasBiases) {
      place.template mask<Width, Edge>(scores, shared_.bias[keys_.stage]);
    } else {
      place.template mask<Width, Edge>(scores, shared_.mask[queries_.stage]);
    }
  }

  CUTLASS_DEVICE void rescale(Tile& tile) const {
    if (K::kScalesSeldom && !__any_sync(~0u, tile.rows.factor[0] != 1 || tile.rows.factor[1] != 1))
      return;
#pragma unroll
    for (int i = 0; i < K::kValueSize / 2; ++i) tile.sums[i] *= tile.rows.factor[(i >> 1) & 1];
  }

  template <int Width>
  CUTLASS_DEVICE void multiply_keys(Accumulators<Width>& scores) const {
    constexpr Boxes kBoxes = K::kKeyBoxes;
    constexpr int kRowBytes = kBoxes.row_bytes(), kSteps = kBoxes.columns / 16;
    const uint64_t q = OperandDescriptor(shared_.q[queries_.stage][group_], kRowBytes);
    const uint64_t k = OperandDescriptor(shared_.k[keys_.stage], kRowBytes);
#pragma unroll
    for (int i = 0; i < K::kSize / 16; ++i) {  // addresses in descriptors count 16 bytes
      const int box = i / kSteps, step = i % kSteps * 2;
      Wgmma<Width>::template multiply<Element>(scores, q + box * kRows * kRowBytes / 16 + step,
                                               k + box * K::kKeys * kRowBytes / 16 + step, i > 0);
    }
    CommitProducts();
  }

  // Adds the weighted values of a block to what there is, if there is any.
  template <int Width>
  CUTLASS_DEVICE void multiply_values(Tile& tile, bool accumulate) const {
    shared_.v_full[values_.stage].wait(values_.parity);
    PinAccumulators(tile.sums);
    BeginProducts();
    constexpr int kRowBytes = K::kValueBoxes.row_bytes();
    const uint32_t start = SharedAddress(shared_.v[values_.stage]) >> 4 & 0x3fff;
    const uint64_t v = ValuesDescriptor(start, kRowBytes, K::kKeys * kRowBytes);
#pragma unroll
    for (int i = 0; i < Width / 16; ++i)
      WgmmaFromRegisters<K::kValueSize>::template multiply<Element, true>(
          tile.sums, tile.weights + 4 * i, v + i * kRowBytes, accumulate || i > 0);
    CommitProducts();
  }

  CUTLASS_DEVICE void finish_values(Tile& tile) {
    WaitForProducts<0>();
    PinAccumulators(tile.sums);
    release_values();
  }

  CUTLASS_DEVICE void divide(Tile& tile) const {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = tile.rows.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[r] = K::kExcludes && sum == 0 ? params_.empty : 1 / sum;
    }
#pragma unroll
    for (int i = 0; i < K::kValueSize / 2; ++i) tile.sums[i] *= factor[(i >> 1) & 1];
  }

  // Divides the sums, and stores them by way of the queries' place in shared memory: these have
  // been multiplied.
  CUTLASS_DEVICE void store(Tile& tile, const Work& work, int row) {
    divide(tile);
    char* staged = shared_.q[queries_.stage][group_];
    // rows of the same length replace queries of the same warp, others those of all
    if (K::kKeyBoxes.row_bytes() != K::kResultBoxes.row_bytes())
      SyncThreads(kGroupBarrier + group_, 128);
#pragma unroll
    for (int i = 0; i < kUnits; i += 2) stage(tile.sums, i, staged);
    FenceAsyncProxy();
    SyncThreads(kGroupBarrier + group_, 128);
    if (thread_ == 0) {
      constexpr Boxes kBoxes = K::kResultBoxes;
      for (int box = 0; box < kBoxes.count; ++box)
        Store4D(params_.y, staged + box * kRows * kBoxes.row_bytes(), box * kBoxes.columns, row,
                work.head, work.batch);
      CommitStores();
    }
    stored_ = queries_.stage;
    if (K::kQueryStages == 1) release_queries();
  }

  // Gives back the place from which the item before was stored. This waits until TMA has read it,
  // so it comes when the next item's first product has begun, unless that needs the same place.
  CUTLASS_DEVICE void release_queries() {
    if (thread_ == 0 && stored_ >= 0) {
      WaitForStores<0>();
      shared_.q_empty[stored_].arrive();
    }
    stored_ = -1;
  }

  // Pieces of 16 bytes in a row of the result.
  static constexpr int kUnits = K::kValueSize * int(sizeof(typename K::Output)) / 16;

  // Writes pieces i and i + 1 of each row into their box, as TMA swizzles it; one if there are no
  // more.
  CUTLASS_DEVICE void stage(const Sums& sums, int i, const char* staged) const {
    constexpr Boxes kBoxes = K::kResultBoxes;
    constexpr int kRowBytes = kBoxes.row_bytes(), kChunks = kRowBytes / 16;
    const bool both = i + 1 < kUnits;
    const int line = thread_ / 32 * 16 + thread_ % 16, column = i + (both ? thread_ % 32 / 16 : 0);
    const int turn = kRowBytes == 128 ? line % 8 : kRowBytes == 64 ? line / 2 % 4 : line / 4 % 2;
    const uint32_t at = SharedAddress(staged + column / kChunks * kRows * kRowBytes +
                                      line * kRowBytes + (column % kChunks ^ turn) * 16);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < (both ? 2 : 1); ++j) pack(words + 2 * j, sums, i + j);
    if (both)
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    else
      asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(at),
                   "r"(words[0]), "r"(words[1])
                   : "memory");
  }

  // A thread's parts of piece i in its two rows, as stmatrix takes them.
  CUTLASS_DEVICE void pack(uint32_t* words, const Sums& sums, int i) const {
    if constexpr (K::kCodes) {
      exchange(words, encode(sums, 2 * i), encode(sums, 2 * i + 1));
    } else {
      words[0] = Pack<Element>(sums[4 * i], sums[4 * i + 1]);
      words[1] = Pack<Element>(sums[4 * i + 2], sums[4 * i + 3]);
    }
  }

  // The codes of two neighbouring columns from 8 i on: those of the first row in the lower half.
  CUTLASS_DEVICE uint32_t encode(const Sums& sums, int i) const {
    using Output = typename K::Output;
    cutlass::Array<float, 4> values;
#pragma unroll
    for (int j = 0; j < 4; ++j) values[j] = sums[4 * i + j];
    cutlass::AlignedArray<Output, 4, 4> codes;
    static_cast<cutlass::Array<Output, 4>&>(codes) =
        K::Chain::template encode<Output>(values, params_.codes);
    return reinterpret_cast<const uint32_t&>(codes);
  }

  // Thread j of a row's four has columns 2 j and 2 j + 1 of `left` and of `right`, 8 columns each,
  // and gets columns 4 j to 4 j + 3 of both, first those of the first row. Even threads send `left`
  // first, odd ones `right`: so two exchanges serve all.
  CUTLASS_DEVICE void exchange(uint32_t* words, uint32_t left, uint32_t right) const {
    const int j = thread_ % 4, from = thread_ % 32 - j + j % 2 * 2 + j / 2;
    const uint32_t first = __shfl_sync(~0u, j % 2 ? right : left, from),
                   second = __shfl_sync(~0u, j % 2 ? left : right, from ^ 1);
    const uint32_t low = j < 2 ? first : second, high = j < 2 ? second : first;
    words[0] = __byte_perm(low, high, 0x5410), words[1] = __byte_perm(low, high, 0x7632);
  }

  CUTLASS_DEVICE void begin_turn() const {
    if constexpr (K::kTakesTurns) SyncThreads(kTurnBarrier + group_, 256);
  }
  CUTLASS_DEVICE void end_turn() const {
    if constexpr (K::kTakesTurns) ArriveThreads(kTurnBarrier + (group_ + 1) % K::kConsumers, 256);
  }

  // One thread reports that products have been computed, each one that it has read biases.
  CUTLASS_DEVICE void release_keys() {
    if (thread_ % (128 / K::kReleases) == 0) shared_.k_empty[keys_.stage].arrive();
    keys_.advance();
  }
  CUTLASS_DEVICE void release_values() {
    if (thread_ == 0) shared_.v_empty[values_.stage].arrive();
    values_.advance();
  }

  const Params& params_;
  Shared& shared_;
  int group_, thread_;
  int stored_ = -1;  // the queries' stage from which results are being stored
  RingCursor<K::kStages> keys_, values_;
  RingCursor<K::kQueryStages> queries_;
};

}  // namespace attention_sm90
}  // namespace onnxbolt
