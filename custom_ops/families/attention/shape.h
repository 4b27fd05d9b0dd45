// A configuration's numbers by their names, and the parameters of a launch.
#pragma once
#include <climits>

#include "cutlass/fast_math.h"
#include "mma/copy_rows.h"
#include "ops/attention/arguments.h"
#include "runtime/instance.h"
#include "runtime/integers.h"

namespace onnxbolt {
namespace attention {

// Kinds of masks that kernels are compiled for (Masks in onnxbolt/families/attention/).
enum MaskKind { kUnmasked = 0, kAddsFloats = 1, kAddsElements = 2, kBooleans = 3 };

constexpr int kMostTiles = 1024;  // tiles of keys whose being masked out is remembered

// AttentionConfig in onnxbolt/families/attention/.
template <class Config, class ElementType>
struct Shape {
  using Row = Config;
  using Element = ElementType;
  static constexpr int kQueries = Row::at(kTileM);    // queries of a block
  static constexpr int kKeys = Row::at(kTileN);       // keys of a tile
  static constexpr int kSize = Row::at(kTileK);       // a head's size, as it is padded
  static constexpr int kValueSize = Row::at(kWarpK);  // likewise
  static constexpr int kRows = Row::at(kWarpM);       // queries of a warp
  static constexpr int kDepth = Row::at(kInstructionK);
  static constexpr int kStages = Row::at(onnxbolt::kStages);
  static constexpr int kMask = Row::at(kSchedule);
  static constexpr bool kBanded = Row::at(kIterator);
  static constexpr bool kWindows = Row::at(kConsumers);
  static constexpr int kWidth = Row::at(kAlignA);                  // elements of an access
  static constexpr bool kResident = Row::at(onnxbolt::kResident);  // see Block::run_batches
  static constexpr int kSplits = Row::at(kSplitK);                 // blocks that divide the keys
  static constexpr bool kAsync = ArchOf<Row>::kCpAsync;

  static constexpr int kThreads = kQueries / kRows * mma::kWarp;
  static constexpr int kOfUnit = mma::kUnit / int(sizeof(Element));
  static constexpr int kOfStep = mma::kStep / int(sizeof(Element));
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kSizeSteps = kSize / kOfStep;
  static constexpr int kScoreTiles = kKeys / 8;
  static constexpr int kKeySteps = CeilDivide(kKeys, kOfStep);
  static constexpr int kOutputTiles = kValueSize / 8;
  static constexpr int kAhead = kStages > 1 ? kStages - 1 : 1;  // tiles that are loaded ahead

  // Queries stay in registers where these suffice, else they are read from shared memory for each
  // tile.
  static constexpr int kRegisters = kRowTiles * (4 * (kSizeSteps + kScoreTiles + kOutputTiles) + 4);
  static constexpr bool kHeld = kRegisters <= (kMask == kUnmasked ? 176 : 152);

  // shared memory: queries, which the output replaces; the stages' keys and values, in whose place
  // a part of the keys leaves its sums (parts.h); the parts' largest scores; a byte for each tile
  // of a mask
  static constexpr int kKeyRows = RoundUp(kKeys, 16);
  static constexpr int kPitch = mma::RowPitch(kSize * int(sizeof(Element)));
  static constexpr int kValuePitch = mma::RowPitch(kValueSize * int(sizeof(Element)));
  static constexpr int kQueryBytes = kQueries * (kPitch > kValuePitch ? kPitch : kValuePitch);
  static constexpr int kKeyBytes = kKeyRows * kPitch;
  static constexpr int kStageBytes = kKeyBytes + kKeyRows * kValuePitch;
  static constexpr int kTileFlags = kMask == kUnmasked ? 0 : kMostTiles;
  static constexpr int kSumPitch = kValueSize + 8;  // floats; rows of a warp lie in other banks
  static constexpr int kSumBytes = kSplits == 1 ? 0 : kQueries * (kSumPitch + 2) * 4;
  static constexpr int kTopBytes = kSplits == 1 ? 0 : kQueries * 4;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kBytes = (kResident ? kStages : 1) * kQueryBytes +
                                (kRingBytes > kSumBytes ? kRingBytes : kSumBytes) + kTopBytes +
                                kTileFlags;

  // Blocks that take several batches each: as many of an SM as registers allow.
  static constexpr int kThreadsOfSm = kRows == 16 ? 512 : 256;
  static constexpr int kBlocksOfSm =
      kResident && kThreads < kThreadsOfSm ? kThreadsOfSm / kThreads : 1;

  static_assert(kQueries % kRows == 0 && (kRows == 16 || kRows == 32), "whole warps");
  static_assert(kKeys % 8 == 0 && kSize % kOfStep == 0 && kValueSize % kOfStep == 0, "whole steps");
  static_assert(kStages >= 1, "a tile of keys has a place");
  static_assert(!kResident || (kStages == 2 && kMask != kUnmasked), "two batches share a mask");
  static_assert(kSplits == 1 || (ArchOf<Row>::kClusters && !kResident && !kWindows),
                "blocks divide keys in clusters");
};

// `c`: exp(scale s) = exp2(c s). `excluded`: the score of a key that a boolean mask or a band
// excludes. `unread`: the answer of a query that reads no key, but for kPlain.
struct Params : AttentionArguments {
  float c, inverse_scale, excluded, unread;
  int query_tiles, key_tiles;
  int strides;  // a block that takes several batches takes every `strides`-th
  cutlass::FastDivmod window_width;

  // A power of two: its product with c is exact, so that all excluded keys weigh the same. No score
  // moves it.
  static constexpr float kExcluded = -0x1p100f;

  Params(const AttentionArguments& arguments, int query_tile, int key_tile)
      : AttentionArguments(arguments),
        c(scale * 1.4426950408889634f),
        inverse_scale(1.f / scale),
        excluded(masked == Masked::kPlain ? kExcluded : -INFINITY),
        unread(masked == Masked::kZero || keys == 0 ? 0.f : NAN),
        query_tiles(CeilDivide(queries, query_tile)),
        key_tiles(CeilDivide(keys, key_tile)),
        strides(0),
        window_width(windows.width ? windows.window_width : 1) {
    if (mask.period == 0) mask.period = INT_MAX;
  }
};

// The part of the problem that a block has, or a cluster of `splits` blocks: some queries of one
// head.
struct Place {
  int batch, head, query;

  __device__ Place(const Params& params, int query_tile, int splits) {
    const unsigned index = blockIdx.x / splits;
    const int tile = index % params.query_tiles, pair = index / params.query_tiles;
    head = pair % params.heads;
    batch = pair / params.heads;
    query = (params.query_tiles - 1 - tile) * query_tile;  // causal: the longest ones first
  }
};

// The rows of a batch. Element `position` of the batch begins at `at(view, position)`.
template <bool IsWindow>
class BatchRows {
 public:
  __device__ BatchRows(const Params& params, int batch) : params_(params), batch_(batch) {
    if constexpr (IsWindow) {
      const Windows& windows = params.windows;
      const int across = windows.width / windows.window_width;
      const int count = windows.height / windows.window_height * across;
      batch_ = batch / count;
      top_ = batch % count / across * windows.window_height + windows.shift_y;
      left_ = batch % count % across * windows.window_width + windows.shift_x;
    }
  }

  template <class View>
  __device__ int64_t at(const View& view, int position) const {
    return batch_ * view.batch + row(position) * view.row;
  }

 private:
  __device__ int64_t row(int position) const {
    if constexpr (IsWindow) {
      const Windows& windows = params_.windows;
      int i, j;
      params_.window_width(i, j, position);
      const int y = top_ + i, x = left_ + j;
      return (y < windows.height ? y : y - windows.height) * windows.width +
             (x < windows.width ? x : x - windows.width);
    } else {
      return position;
    }
  }

  const Params& params_;
  int batch_, top_, left_;
};

}  // namespace attention
}  // namespace onnxbolt
