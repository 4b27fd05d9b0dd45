// The producer warp of attention: it picks work, and loads queries, keys and values by TMA.
#pragma once
#include <cfloat>

#include "families/attention_sm90/shape.h"
#include "runtime/dependent_launch.h"
#include "sm90/tma.h"

namespace onnxbolt {
namespace attention_sm90 {

// The items of this block. A band makes the last queries' items the longest: these come first
// (Producer::place), and blocks take them back and forth, so that all have about the same.
template <class K>
class Items {
 public:
  __device__ explicit Items(const Params& params) : count_(params.items), item_(blockIdx.x) {}

  __device__ bool done() const { return begin_ >= count_; }
  // A last round may have none for this block.
  __device__ bool valid() const { return item_ < count_; }
  __device__ int item() const { return item_; }
  __device__ int round() const { return round_; }

  __device__ void advance() {
    begin_ += gridDim.x;
    ++round_;
    item_ = begin_ + (K::kBand && round_ % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  }

 private:
  int count_, begin_ = 0, round_ = 0, item_;
};

// A range of keys.
struct Range {
  int begin, end;
};

// The numbers that a mask adds to the scores of one batch and head, the same for all queries, times
// log2(e).
template <class Element>
class KeyMask {
 public:
  // Scores of keys with a lower bias are out of reach of the others'.
  static constexpr float kLow = -1e30f;

  __device__ KeyMask(const Params& params, int batch, int head)
      : params_(params), begin_(batch * params.mask.batch + head * params.mask.head) {}

  __device__ int64_t begin() const { return begin_; }

  __device__ float bias(int key) const {
    const ScoreMask& mask = params_.mask;
    if (key >= params_.keys) return -INFINITY;
    const int64_t at = begin_ + key * mask.key;
    if (mask.kind == Masking::kAdded) {
      const float added = mask.fp32
                              ? static_cast<const float*>(mask.data)[at]
                              : static_cast<float>(static_cast<const Element*>(mask.data)[at]);
      // finite values remain so: equal ones are the mean of all values
      return added == -INFINITY ? params_.excluded : fmaxf(added * kLog2E, -FLT_MAX);
    }
    const bool set = static_cast<const uint8_t*>(mask.data)[at] != 0;
    return set == (mask.kind == Masking::kKept) ? 0.f : params_.excluded;
  }

  // The keys from the first to the last one that counts; all if none does, since each counts the
  // same then. The whole warp calls this.
  __device__ Range kept() const {
    const int keys = params_.keys;
    int begin = keys, end = 0;
#pragma unroll 4
    for (int key = threadIdx.x % 32; key < keys; key += 32) {
      if (bias(key) > kLow) {
        begin = min(begin, key);
        end = key + 1;
      }
    }
    begin = __reduce_min_sync(~0u, begin), end = __reduce_max_sync(~0u, end);
    return end > 0 ? Range{begin, end} : Range{0, keys};
  }

 private:
  const Params& params_;
  int64_t begin_;
};

// The whole warp runs this; its first lane starts the copies.
//
// Phases. A stage's `full` barrier completes once per use, by the arrival of the producer's first
// lane and the bytes of its copies, and by those of the other lanes where these write a mask's
// biases. Its `empty` barrier completes once per use, by an arrival of each consumer warpgroup, or
// of each of its threads if these have read a mask's biases. The producer waits for the parity
// before its own, which is complete at the start, so that the first round of a ring does not wait.
// Keys and values alternate: consumers need the next block's keys before they release this block's
// values, but never the next block's values.
template <class K>
class Producer {
 public:
  using Element = typename K::Element;
  using Shared = typename K::Shared;

  __device__ Producer(const Params& params, Shared& shared)
      : params_(params), shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    WaitForPredecessors();
    for (Items<K> items(params_); !items.done(); items.advance()) {
      if (items.valid()) produce(items.item(), items.round());
    }
    finish();
  }

 private:
  __device__ void produce(int item, int round) {
    Work work = place(item, round);
    const KeyMask<Element> mask(params_, work.batch, work.head);
    const Range range = keys(work, mask);
    work.first = range.begin / K::kKeys;
    work.mask = 0;
    work.blocks = max(CeilDivide(range.end, K::kKeys) - work.first, 1);
    load_queries(work);
    const Place keys{params_.sharing.divide(work.head), work.batch};
    for (int block = work.first; block < work.first + work.blocks; ++block) {
      load_keys(keys, block * K::kKeys, mask);
      load_values(keys, block * K::kKeys);
      stages_.advance();
    }
  }

  struct Place {
    int head, batch;
  };

  // The queries of an item. Without a band, the groups of a head are neighbours; with one, all
  // heads' last groups come first.
  __device__ Work place(int item, int round) const {
    Work work;
    int group;
    if constexpr (K::kBand) {
      int outer = params_.heads.split(item);
      group = params_.group_count - 1 - params_.batches.split(outer);
      work.head = item, work.batch = outer;
    } else {
      int outer = params_.groups.split(item);
      group = item;
      if (params_.rotates) {
        group += round;
        params_.groups.split(group);
      }
      work.batch = params_.heads.split(outer), work.head = outer;
    }
    work.row = group * K::kConsumers * kRows;
    work.idle = max(K::kConsumers - CeilDivide(params_.queries - work.row, kRows), 0);
    return work;
  }

  // The keys that some query of an item reads.
  __device__ Range keys(const Work& work, const KeyMask<Element>& mask) {
    Range range{0, params_.keys};
    if (params_.all_blocks) return range;
    if constexpr (K::kHasBiases) {
      if (mask.begin() != scanned_) kept_ = mask.kept(), scanned_ = mask.begin();
      range = kept_;
    }
    if constexpr (K::kBand) {
      const int last = min(work.row + K::kConsumers * kRows, params_.queries) - 1;
      range.begin = max(range.begin, work.row + params_.shift + params_.first);
      range.end = min(range.end, last + params_.shift + params_.last + 1);
      range.begin = min(range.begin, params_.keys - 1);  // a band may lie outside
    }
    return range;
  }

  __device__ void load_queries(Work& work) {
    const int stage = queries_.stage;
    Barrier& full = shared_.q_full[stage];
    shared_.q_empty[stage].wait(queries_.parity ^ 1);
    MaskCopy mask{};
    if constexpr (K::kCopiesMask) {
      if (params_.copies_mask) mask = begin_mask(work, shared_.mask[stage]);
    }
    if (lane_ == 0) {
      shared_.work[stage] = work;
      full.arrive_and_expect((K::kConsumers - work.idle) * K::kQueryBytes + mask.bytes);
      if (mask.bytes > 0) LoadBytes(mask.from, full, shared_.mask[stage], mask.bytes);
      for (int group = work.idle; group < K::kConsumers; ++group)
        load<K::kSize, kRows>(params_.q, full, shared_.q[stage][group],
                              work.row + (group - work.idle) * kRows, {work.head, work.batch},
                              Cache::kEvictFirst);
    }
    queries_.advance();
  }

  // Tells the consumers that there are no items any more.
  __device__ void finish() {
    const int stage = queries_.stage;
    shared_.q_empty[stage].wait(queries_.parity ^ 1);
    if (lane_ == 0) {
      shared_.work[stage].blocks = 0;
      shared_.q_full[stage].arrive();
    }
  }

  // The part of an item's mask that TMA copies.
  struct MaskCopy {
    const char* from;
    int bytes;
  };

  // TMA copies whole units of 16 bytes. The lanes copy what the mask has of its very last one.
  __device__ MaskCopy begin_mask(Work& work, char* to) const {
    const ScoreMask& mask = params_.mask;
    const char* data = static_cast<const char*>(mask.data);
    const int rows = min(K::kConsumers * kRows, params_.queries - work.row);
    const int64_t first = work.batch * mask.batch + work.head * mask.head + work.row * mask.query;
    const int64_t begin = first * K::kMaskValue,
                  end = begin + int64_t(rows) * params_.keys * K::kMaskValue;
    work.mask = begin % 16;
    const int64_t from = begin - work.mask, whole = params_.mask_bytes / 16 * 16;
    const int bytes = static_cast<int>(max(min(RoundUp(end, 16), whole) - from, int64_t(0)));
    for (int64_t at = from + bytes + lane_; at < end; at += 32) to[at - from] = data[at];
    FenceAsyncProxy();  // a later copy replaces what the lanes have written
    __syncwarp();       // before the first lane arrives
    return {data + from, bytes};
  }

  __device__ void load_keys(Place place, int key, const KeyMask<Element>& mask) {
    const int stage = stages_.stage;
    Barrier& full = shared_.k_full[stage];
    shared_.k_empty[stage].wait(stages_.parity ^ 1);
    if constexpr (K::kHasBiases) {
      for (int i = lane_; i < K::kKeys; i += 32) shared_.bias[stage][i] = mask.bias(key + i);
      if (lane_ != 0) full.arrive();
    }
    if (lane_ == 0) {
      full.arrive_and_expect(K::kKeyBytes);
      load<K::kSize, K::kKeys>(params_.k, full, shared_.k[stage], key, place, Cache::kNormal);
    }
  }

  __device__ void load_values(Place place, int key) {
    const int stage = stages_.stage;
    Barrier& full = shared_.v_full[stage];
    shared_.v_empty[stage].wait(stages_.parity ^ 1);
    if (lane_ == 0) {
      full.arrive_and_expect(K::kValueBytes);
      load<K::kValueSize, K::kKeys>(params_.v, full, shared_.v[stage], key, place, Cache::kNormal);
    }
  }

  template <int Size, int Rows>
  __device__ void load(const CUtensorMap& map, Barrier& full, char* to, int row, Place place,
                       Cache cache) const {
    constexpr Boxes kBoxes{Size};
#pragma unroll
    for (int box = 0; box < kBoxes.count; ++box)
      Load4D(map, full, to + box * Rows * kBoxes.row_bytes(), box * kBoxes.columns, row, place.head,
             place.batch, cache);
  }

  const Params& params_;
  Shared& shared_;
  int lane_;
  RingCursor<K::kStages> stages_;
  RingCursor<K::kQueryStages> queries_;
  int64_t scanned_ = -1;  // the mask that kept_ is of
  Range kept_{};
};

}  // namespace attention_sm90
}  // namespace onnxbolt
