// Attention by mma.sync, on every architecture: y = softmax(scale q k^T, masked) v of each head, in
// one pass over the keys.
//
// A block has some queries of one head; each of its warps has 16 or 32 of them, and all keys. Tiles
// of keys and values pass through a ring in shared memory. Scores begin at what the mask adds
// (masks.h), and the softmax is that of all keys so far: when a larger score comes, sums shrink.
// With one stage all keys are expected in one tile; if there are more, the next tile is loaded when
// this one is done. Where few blocks have queries, the blocks of a cluster divide the tiles of keys
// (parts.h).
//
// fp16 and bf16 are multiplied as they are, with weights rounded to them; fp32 as TF32. Scores,
// statistics and sums are fp32. Sums are in a fixed order: results are the same bits on every run.
//
// Constraints: sizes, strides and pointers of q, k, v and y are multiples of align_a elements.
// Masks have any strides.
#pragma once
#include <algorithm>

#include "families/attention/parts.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace attention {

template <class S>
class Block {
 public:
  using Element = typename S::Element;

  __device__ Block(const Params& params, char* memory)
      : params_(params),
        place_(params, S::kQueries, S::kSplits),
        memory_(memory),
        first_(place_.query + threadIdx.x / mma::kWarp * S::kRows),
        warp_(params),
        masks_(params, place_, first_) {}

  __device__ void run() {
    load_queries(place_.batch, memory_);
    commit();
    warp_.begin(own_rows(memory_));
    const int rank = S::kSplits > 1 ? ClusterRank() : 0;
    Visits<S> visits(params_, place_.query, find_kept_tiles(), rank);
    do {
      visit(visits);
    } while (may_mean_all() && visits.turn_to_rest() && lack_keys());
    if constexpr (S::kSplits > 1) {
      const Rows rows(params_, place_.batch);
      parts().finish(warp_, [&](int i) { return result(rows, place_.query + i); });
    } else {
      if (has_work()) store(place_.batch);
    }
  }

  // Several batches with the same mask, which stays in registers; all keys are one tile. The next
  // batch is loaded while this one is worked on.
  __device__ void run_batches() {
    load_batch(place_.batch, memory_);
    ScoreTiles<S> starts;
    if (has_work()) masks_.begin(starts, 0);
    int at = 0;
    for (int batch = place_.batch; batch < params_.batch; batch += params_.strides) {
      char* here = memory_ + at;
      at = kBatchBytes - at;
      wait<0>();
      __syncthreads();
      load_batch(batch + params_.strides, memory_ + at);
      if (has_work()) {
        warp_.begin(own_rows(here));
        warp_.hold_queries();
        ScoreTiles<S> scores;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < sizeof(scores) / sizeof(float); ++i) scores[0][0][i] = starts[0][0][i];
        is_first_ = true;
        attend(scores, here + S::kQueryBytes);
        store(batch);
      }
    }
  }

 private:
  using Rows = BatchRows<S::kWindows>;

  // Queries and outputs share rows.
  static constexpr int kRowPitch = S::kQueryBytes / S::kQueries;
  static constexpr int kBatchBytes = S::kQueryBytes + S::kStageBytes;

  // True if a query whose keys are all excluded may have the mean of all values.
  __device__ bool may_mean_all() const {
    return params_.masked == Masked::kPlain || S::kMask == kAddsFloats || S::kMask == kAddsElements;
  }

  // True if one of the block's queries has read excluded keys alone.
  __device__ bool lack_keys() const {
    if constexpr (S::kSplits > 1) {
      return parts().lack_keys(warp_);
    } else {
      return __syncthreads_or(warp_.lacks_keys(params_.queries - first_));
    }
  }

  __device__ Parts<S> parts() const { return Parts<S>(params_, place_, memory_); }

  __device__ void load_batch(int batch, char* to) const {
    if (batch >= params_.batch) return;
    load_queries(batch, to);
    load_keys(batch, 0, to + S::kQueryBytes);
    commit();
  }

  // The warp's rows of the block's queries.
  __device__ char* own_rows(char* queries) const {
    return queries + threadIdx.x / mma::kWarp * S::kRows * kRowPitch;
  }

  // The first element of a query's result.
  __device__ Element* result(const Rows& rows, int query) const {
    const HeadsOutput& y = params_.y;
    return static_cast<Element*>(y.data) + place_.head * y.head + rows.at(y, query);
  }

  __device__ void store(int batch) {
    const Rows rows(params_, batch);
    const auto row = [&](int i) { return result(rows, first_ + i); };
    warp_.store(row, params_.queries - first_, params_.value_size);
  }

  __device__ bool has_work() const { return first_ < params_.queries; }

  template <int Count, int Columns>
  __device__ void copy(char* to, const HeadsView& from, const Rows& batch, int head, int begin,
                       int rows, int columns) const {
    const auto row = [&](int i) {
      return static_cast<const Element*>(from.data) + head * from.head + batch.at(from, begin + i);
    };
    mma::CopyRows<Element, S::kThreads, Count, Columns / S::kOfUnit, S::kWidth, S::kAsync>(
        to, row, rows - begin, columns);
  }

  // Copies that are not asynchronous are complete at once.
  __device__ static void commit() {
    if constexpr (S::kAsync) mma::CommitCopies();
  }
  template <int Pending>
  __device__ static void wait() {
    if constexpr (S::kAsync) mma::WaitForCopies<Pending>();
  }

  __device__ void load_queries(int batch, char* to) const {
    // rows are further apart where those of the output are longer
    constexpr int kRows = kRowPitch == S::kPitch ? S::kQueries : S::kRows;
    const Rows rows(params_, batch);
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < S::kQueries; row += kRows)
      copy<kRows, S::kSize>(to + row * kRowPitch, params_.q, rows, place_.head, place_.query + row,
                            params_.queries, params_.size);
  }

  // A tile's keys, and its values behind them.
  __device__ void load_keys(int batch, int tile, char* to) const {
    const int head = place_.head / (params_.heads / params_.key_heads), key = tile * S::kKeys;
    const Rows rows(params_, batch);
    copy<S::kKeyRows, S::kSize>(to, params_.k, rows, head, key, params_.keys, params_.size);
    copy<S::kKeyRows, S::kValueSize>(to + S::kKeyBytes, params_.v, rows, head, key, params_.keys,
                                     params_.value_size);
  }

  __device__ char* stage(int index) const {
    return memory_ + S::kQueryBytes + index * S::kStageBytes;
  }

  // A tile as one group of copies; an empty group beyond the last tile.
  __device__ void load(const Visits<S>& visits, int tile, int index) const {
    if (!visits.is_over(tile)) load_keys(place_.batch, tile, stage(index));
    commit();
  }

  // A byte for each of the first tiles of keys: whether the mask keeps one of them. Null where the
  // mask depends on the query, or where there is one tile alone.
  __device__ const uint8_t* find_kept_tiles() const {
    if (S::kMask == kUnmasked || params_.mask.query != 0 || params_.key_tiles < 2) return nullptr;
    auto kept = reinterpret_cast<uint8_t*>(memory_ + S::kBytes - S::kTileFlags);
    const int warp = threadIdx.x / mma::kWarp, tiles = min(params_.key_tiles, kMostTiles);
    for (int tile = warp; tile < tiles; tile += S::kThreads / mma::kWarp) {
      const bool keeps = masks_.keeps(tile);
      if (threadIdx.x % mma::kWarp == 0) kept[tile] = keeps;
    }
    __syncthreads();
    return kept;
  }

  __device__ void visit(const Visits<S>& visits) {
    int ahead = visits.first();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < S::kAhead; ++i, ahead = visits.after(ahead)) load(visits, ahead, i);
    // with one stage, the first tile's mask is read meanwhile
    if constexpr (S::kStages > 1) {
      wait<S::kAhead>();
      __syncthreads();
      if (is_first_) warp_.hold_queries();
    }
    int at = 0;
    for (int tile = visits.first(); !visits.is_over(tile); tile = visits.after(tile)) {
      ScoreTiles<S> scores;
      if (has_work()) masks_.begin(scores, tile);
      wait<S::kAhead - 1>();
      __syncthreads();
      if constexpr (S::kStages > 1) {
        load(visits, ahead, at == 0 ? S::kStages - 1 : at - 1);
        ahead = visits.after(ahead);
      }
      if (S::kStages == 1 && is_first_) warp_.hold_queries();
      if (has_work()) attend(scores, stage(at));
      if constexpr (S::kStages == 1) {
        if (visits.is_over(ahead)) continue;
        __syncthreads();
        load(visits, ahead, 0);
        ahead = visits.after(ahead);
      }
      at = at + 1 == S::kStages ? 0 : at + 1;
    }
    wait<0>();  // the queries' copies, if there was no tile: results are stored in their place
    __syncthreads();
  }

  __device__ void attend(ScoreTiles<S>& scores, const char* keys) {
    warp_.add_scores(scores, keys);
    warp_.weigh(scores, is_first_);
    warp_.add_values(scores, keys + S::kKeyBytes);
    is_first_ = false;
  }

  const Params& params_;
  const Place place_;
  char* const memory_;
  const int first_;  // the warp's first query
  Warp<S> warp_;
  const Masks<S> masks_;
  bool is_first_ = true;
};

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class S>
static __global__ void __launch_bounds__(S::kThreads)
    attend(const __grid_constant__ Params params) {
  extern __shared__ uint4 shared_memory[];
  LaunchDependents();
  WaitForPredecessors();
  Block<S>(params, reinterpret_cast<char*>(shared_memory)).run();
}

template <class S>
static __global__ void __launch_bounds__(S::kThreads, S::kBlocksOfSm)
    attend_batches(const __grid_constant__ Params params) {
  extern __shared__ uint4 shared_memory[];
  LaunchDependents();
  WaitForPredecessors();
  Block<S>(params, reinterpret_cast<char*>(shared_memory)).run_batches();
}

}  // namespace attention

template <class Config, class ElementType>
struct Attention {
  using Row = Config;
  using Element = ElementType;
  using Output = ElementType;
  using Shape = attention::Shape<Row, Element>;
  static constexpr int kSharedMemory = Shape::kBytes;

  static const char* prepare() {
    if constexpr (Shape::kResident) {
      if (const char* error = ReserveSharedMemory(attention::attend_batches<Shape>, kSharedMemory))
        return error;
    }
    return ReserveSharedMemory(attention::attend<Shape>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const AttentionArguments*>(arguments);
    if (args.batch < 0 || args.queries < 0 || args.keys < 0 || args.heads < 1 || args.key_heads < 1)
      return "a size is negative, or there are no heads";
    if (args.heads % args.key_heads) return "the heads of keys do not divide those of queries";
    if (args.size < 1 || args.size > Shape::kSize || args.value_size < 1 ||
        args.value_size > Shape::kValueSize)
      return "a head's size is not in the kernel's range";
    if (!(args.scale > 0) || args.scale * args.scale == INFINITY)
      return "the scale is not positive and finite";
    if (const char* error = check_mask(args)) return error;
    if (const char* error = check_windows(args)) return error;
    const int64_t tiles = CeilDivide(int64_t(args.queries), Shape::kQueries);
    if (int64_t(args.batch) * args.heads * tiles > INT_MAX / Shape::kSplits ||
        int64_t(args.queries) + args.keys > INT_MAX / 2)
      return "an extent exceeds the kernel's range";
    for (const HeadsView& view : {args.q, args.k, args.v, of_output(args.y)}) {
      if (const char* error = check_view(view)) return error;
    }
    return args.size % Shape::kWidth || args.value_size % Shape::kWidth
               ? "a head's size is not a multiple of align_a"
               : nullptr;
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const AttentionArguments*>(arguments);
    if (args.batch == 0 || args.queries == 0) return nullptr;
    attention::Params params(args, Shape::kQueries, Shape::kKeys);
    const int of_batch = args.heads * params.query_tiles;
    if constexpr (Shape::kResident) {
      const bool is_same =
          args.mask.batch == 0 || (0 < args.mask.period && args.mask.period < args.batch);
      if (is_same && params.key_tiles == 1) {
        params.strides = strides(args, launch.sm_count * Shape::kBlocksOfSm / of_batch);
        return start(attention::attend_batches<Shape>, params.strides * of_batch, params, launch);
      }
    }
    return start(attention::attend<Shape>, args.batch * of_batch * Shape::kSplits, params, launch);
  }

 private:
  // About as many batches as there is room for, apart by multiples of which the mask is the same.
  static int strides(const AttentionArguments& args, int room) {
    const int period = args.mask.batch == 0 ? 1 : args.mask.period;
    const int groups = CeilDivide(args.batch, period), most = std::max(room / period, 1);
    return CeilDivide(groups, CeilDivide(groups, most)) * period;
  }

  static const char* start(void (*kernel)(attention::Params), int blocks,
                           const attention::Params& params, const Launch& launch) {
    return LaunchDependent(kernel, blocks, Shape::kThreads, launch.stream, params,
                           ArchOf<Row>::kDependentLaunch, kSharedMemory, Shape::kSplits);
  }

  static HeadsView of_output(const HeadsOutput& y) { return {y.data, y.batch, y.row, y.head}; }

  static const char* check_view(const HeadsView& view) {
    if (view.batch % Shape::kWidth || view.row % Shape::kWidth || view.head % Shape::kWidth ||
        !IsAligned(view.data, Shape::kWidth * sizeof(Element)))
      return "q, k, v or y is not aligned to align_a elements";
    return nullptr;
  }

  static const char* check_windows(const AttentionArguments& args) {
    const Windows& windows = args.windows;
    if (Shape::kWindows != (windows.height > 0)) return "the kernel is not for these windows";
    const int positions = windows.window_height * windows.window_width;
    if (Shape::kWindows && (args.queries != positions || args.keys != positions))
      return "there are other queries or keys than a window's positions";
    return nullptr;
  }

  static const char* check_mask(const AttentionArguments& args) {
    const bool adds = args.mask.kind == Masking::kAdded;
    const bool wide = args.mask.fp32 || sizeof(Element) == 4;
    const int kind = args.mask.kind == Masking::kNone ? attention::kUnmasked
                     : !adds                          ? attention::kBooleans
                     : wide                           ? attention::kAddsFloats
                                                      : attention::kAddsElements;
    if (kind != Shape::kMask) return "the kernel is for another kind of mask";
    if (kind != attention::kUnmasked && args.mask.data == nullptr && args.keys > 0)
      return "the mask is missing";
    if (args.mask.key < 0 || args.mask.key > INT_MAX) return "a mask's keys are too far apart";
    if (!Shape::kBanded && (args.first != INT_MIN || args.last != INT_MAX))
      return "the kernel knows no band";
    if (args.mask.period < 0) return "the mask's period is negative";
    return nullptr;
  }
};

}  // namespace onnxbolt
