// The producer warpgroup: one thread keeps the ring of operand tiles full by TMA, another brings
// residuals ahead of the epilogues.
//
// How it works: for each k-block of each tile the thread waits until all consumers have given the
// stage back, tells the stage's barrier how many bytes will come, and issues the copies of A and B.
// Weights are constants, so the first ones are loaded before the kernel before has ended
// (runtime/dependent_launch.h); activations wait for it. In a cluster each block loads a part of
// the rows that the blocks share, and multicasts it to all of them.
//
// Constraints: one copy has at most 256 rows, and a box of a swizzled row (128, 64 or 32 bytes)
// along k.
#pragma once
#include <algorithm>

#include "runtime/dependent_launch.h"
#include "sm90/params.h"
#include "sm90/shape.h"

namespace onnxbolt {
namespace sm90 {

// Walks the k-blocks of a tile: channels within filter positions (r, s), which are also counted
// (tap).
template <class K>
struct BlockCursor {
  using Range = typename K::Range;
  int channels, filter_w, channel, tap, r, s;
  int first_s = 0;  // the first position of each row of the filter

  __device__ BlockCursor(const Params& params, const Range& range)
      : channels(params.blocks_per_tap * K::kTileK), filter_w(params.image.filter_w) {
    channel = tap = r = s = 0;
    if constexpr (Range::kSkipsTaps) {
      r = range.taps.r, first_s = s = range.taps.s;
      tap = r * filter_w + s;
    }
    if (range.first == 0) return;
    tap = range.first / params.blocks_per_tap;
    channel = (range.first - tap * params.blocks_per_tap) * K::kTileK;
    r = tap / filter_w;
    s = tap - r * filter_w;
  }

  __device__ void advance() {
    channel += K::kTileK;
    if (channel < channels) return;
    channel = 0, ++tap;
    if (++s == filter_w) s = 0, ++r;
    if constexpr (Range::kSkipsTaps) {
      if (s == 0) s = first_s, tap += first_s;
    }
  }
};

// In a cluster the blocks that share rows of A each load a part of them for all: the part of this
// block, and the mask of all of them.
template <class K>
struct SharingOfA {
  int part;
  uint16_t mask = 0;

  __device__ explicit SharingOfA(int rank) : part(rank / K::kClusterM) {
    if constexpr (K::kClusterN > 1) {
      for (int n = 0; n < K::kClusterN; ++n) mask |= 1 << (rank % K::kClusterM + n * K::kClusterM);
    }
  }
};

// Loads tiles of A.
template <class K, bool kIsImage>
class LoaderOfA {
 public:
  static constexpr int kRows = K::kTileM / K::kClusterN, kPartBytes = kRows * K::kBoxBytes;

  __device__ LoaderOfA(const Params& params, int rank) : params_(params), sharing_(rank) {}

  __device__ void begin_tile(int row, int column) {
    row_ = row + sharing_.part * kRows;
    if constexpr (!kIsImage) return;
    channel_ = params_.groups.first_channel(column);
    const ImageGeometry& image = params_.image;
    int pixel = K::kMean ? 0 : row_;
    n_ = K::kMean ? row_ / kImageRows : image.pixels.split(pixel);
    h_ = image.row.split(pixel) * image.stride_h - image.pad_top;
    w_ = pixel * image.stride_w - image.pad_left;
  }

  __device__ void load(Barrier& full, char* tile, const BlockCursor<K>& at) const {
    const ImageGeometry& image = params_.image;
#pragma unroll
    for (int box = 0; box < K::kBoxes; ++box) {
      char* to = tile + box * K::kTileM * K::kBoxBytes + sharing_.part * kPartBytes;
      const int c = channel_ + at.channel + box * K::kBoxK;
      if constexpr (K::kMean) {
        load_images(full, to, c, at);
      } else if (!kIsImage || params_.a_is_matrix) {
        if constexpr (K::kClusterN > 1)
          Load2D(params_.a, full, to, c, row_, Cache::kNormal, sharing_.mask);
        else
          Load2D(params_.a, full, to, c, row_, Cache::kNormal);
      } else {
        const Im2col from{c,
                          w_,
                          h_,
                          n_,
                          static_cast<uint16_t>(at.s * image.dilation_w),
                          static_cast<uint16_t>(at.r * image.dilation_h)};
        if constexpr (K::kClusterN > 1)
          LoadIm2col(params_.a, full, to, from, Cache::kNormal, sharing_.mask);
        else
          LoadIm2col(params_.a, full, to, from, Cache::kNormal);
      }
    }
  }

 private:
  // Each image has rows of its own. Rows beyond its last pixel get zeros or pixels of the next
  // image; the mean leaves them out.
  __device__ void load_images(Barrier& full, char* to, int channel,
                              const BlockCursor<K>& at) const {
    if (params_.a_is_matrix) return Load3D(params_.a, full, to, channel, 0, n_, Cache::kNormal);
    const ImageGeometry& image = params_.image;
    const auto offset_w = static_cast<uint16_t>(at.s * image.dilation_w),
               offset_h = static_cast<uint16_t>(at.r * image.dilation_h);
#pragma unroll
    for (int i = 0; i < kRows / kImageRows; ++i)
      LoadIm2col(params_.a, full, to + i * kImageRows * K::kBoxBytes,
                 {channel, w_, h_, n_ + i, offset_w, offset_h}, Cache::kNormal);
  }

  const Params& params_;
  const SharingOfA<K> sharing_;
  int row_ = 0, channel_ = 0, n_ = 0, h_ = 0, w_ = 0;
};

// Loads tiles of B, the weights [columns, taps, channels]. Channels beyond the last are zeros.
template <class K>
class LoaderOfB {
 public:
  static constexpr int kRows = K::kTileN / K::kClusterM, kPartBytes = kRows * K::kBoxBytes;

  __device__ LoaderOfB(const Params& params, int rank)
      : params_(params), part_(rank % K::kClusterM) {
    if constexpr (K::kClusterM > 1) {
      for (int m = 0; m < K::kClusterM; ++m) mask_ |= 1 << (m + rank / K::kClusterM * K::kClusterM);
    }
  }

  __device__ void load(Barrier& full, char* tile, const BlockCursor<K>& at, int column) const {
#pragma unroll
    for (int box = 0; box < K::kBoxes; ++box) {
      char* to = tile + box * K::kTileN * K::kBoxBytes + part_ * kPartBytes;
      const int c = at.channel + box * K::kBoxK, row = column + part_ * kRows;
      if constexpr (K::kPairsColumns)
        load_pairs(full, to, at.tap * params_.groups.depth + c, row / kPairedColumns);
      else if constexpr (K::kClusterM > 1)
        Load3D(params_.b, full, to, c, at.tap, row, Cache::kEvictLast, mask_);
      else
        Load3D(params_.b, full, to, c, at.tap, row, Cache::kEvictLast);
    }
  }

 private:
  // Rows in the order of sm90/codes.h. Channels beyond the last of a tap are the next tap's: they
  // meet zeros.
  __device__ void load_pairs(Barrier& full, char* to, int c, int group) const {
    if constexpr (K::kClusterM > 1)
      Load5D(params_.b, full, to, c, 0, 0, 0, group, Cache::kEvictLast, mask_);
    else
      Load5D(params_.b, full, to, c, 0, 0, 0, group, Cache::kEvictLast);
  }

  const Params& params_;
  int part_;
  uint16_t mask_ = 0;
};

// Loads that follow a tile's k-blocks in the ring: none.
template <class KernelParams = sm90::Params>
struct NothingBehind {
  using Params = KernelParams;
  static constexpr int kStages = 0;
  __device__ static void load(const Params&, Barrier&, char*, int) {}
};

template <class K, bool kIsImage, class Behind = NothingBehind<>>
class Producer {
 public:
  __device__ Producer(const typename Behind::Params& params, SharedMemory<K> memory)
      : params_(params),
        memory_(memory),
        barriers_(memory.barriers()),
        tiles_(params.schedule, params.split),
        range_(params, params.split > 1 ? tiles_.rank : 0),
        a_(params, params.split > 1 ? 0 : tiles_.rank),
        b_(params, params.split > 1 ? 0 : tiles_.rank) {}

  // Loads the first weights before the kernel before has ended: they are constants. A few suffice
  // to hide the latency; more of them would delay the activations in the queue of copies.
  __device__ void run() {
    const int early = load_early_weights();
    WaitForPredecessors();
    for (int tile = tiles_.first; tile < params_.schedule.count(); tile += tiles_.step)
      load_tile(tile, tile == tiles_.first ? early : 0);
  }

 private:
  static constexpr int kEarlyBlocks = std::min(K::kStages, 3);
  static constexpr int kBytesOfStage = K::kABytes + (K::kIsResident ? 0 : K::kBBytes);

  __device__ int load_early_weights() {
    const int column = tiles_.origin(tiles_.first).column;
    range_.enter(params_, column);
    const int count = K::kIsResident ? range_.count() : min(kEarlyBlocks, range_.count());
    if constexpr (K::kIsResident) barriers_.weights.arrive_and_expect(count * K::kBBytes);
    BlockCursor<K> cursor(params_, range_);
    for (int i = 0; i < count; ++i, cursor.advance()) {
      Barrier& full = K::kIsResident ? barriers_.weights : barriers_.full[i];
      if constexpr (!K::kIsResident) full.arrive_and_expect(kBytesOfStage);
      b_.load(full, memory_.b(i), cursor, column);
    }
    return K::kIsResident ? 0 : count;
  }

  // The weights of the first `early` k-blocks are under way already.
  __device__ void load_tile(int tile, int early) {
    const Origin origin = tiles_.origin(tile);
    a_.begin_tile(origin.row, origin.column);
    range_.enter(params_, origin.column);
    BlockCursor<K> cursor(params_, range_);
    for (int i = 0; i < range_.count(); ++i, cursor.advance(), stage_.advance()) {
      Barrier& full = barriers_.full[stage_.stage];
      if (i >= early) {
        barriers_.empty[stage_.stage].wait(stage_.parity ^ 1);
        full.arrive_and_expect(kBytesOfStage);
        if constexpr (!K::kIsResident)
          b_.load(full, memory_.b(stage_.stage), cursor, origin.column);
      }
      a_.load(full, memory_.a(stage_.stage), cursor);
      if (tile == tiles_.first && i == min(K::kStages, range_.count()) - 1)
        barriers_.begun.arrive();
    }
    for (int i = 0; i < Behind::kStages; ++i, stage_.advance()) {
      barriers_.empty[stage_.stage].wait(stage_.parity ^ 1);
      Behind::load(params_, barriers_.full[stage_.stage], memory_.b(stage_.stage), i);
    }
  }

  const typename Behind::Params& params_;
  SharedMemory<K> memory_;
  typename K::Barriers& barriers_;
  Tiles<K> tiles_;
  typename K::Range range_;
  LoaderOfA<K, kIsImage> a_;
  LoaderOfB<K> b_;
  RingCursor<K::kStages> stage_;
};

// Loads the residual of each unit of this block's tiles into the buffer from which the unit will be
// stored. The first residuals wait for the first tile's operands, which are needed earlier.
template <class K>
class ResidualProducer {
 public:
  using Finish = typename K::Finish;

  __device__ ResidualProducer(const Params& params, SharedMemory<K> memory)
      : params_(params), memory_(memory), tiles_(params.schedule, params.split) {}

  __device__ void run() {
    WaitForPredecessors();
    memory_.barriers().begun.wait(0);
    int turn = 0;
    for (int tile = tiles_.first; tile < params_.schedule.count(); tile += tiles_.step, ++turn) {
      const Origin origin = tiles_.origin(tile);
      for (int unit = 0; unit < Finish::kUnits; ++unit) {
        if constexpr (K::kIsPingpong) {
          load(turn % K::kGroups, unit, origin.row, origin.column / K::kFold);
        } else {
          for (int group = 0; group < K::kGroups; ++group) {
            if (owns(group, unit))
              load(group, unit, origin.row + group * K::kGroupRows, origin.column / K::kFold);
          }
        }
      }
    }
  }

 private:
  __device__ bool owns(int group, int unit) const {
    return params_.split <= 1 || OwnerOfUnit<K>(group, unit, params_.split) == tiles_.rank;
  }

  __device__ void load(int group, int unit, int row, int column) {
    const EpilogueMemory<Finish> memory = memory_.epilogue(group);
    RingCursor<Finish::kBuffers>& cursor = cursors_[group];
    memory.residual_free[cursor.stage].wait(cursor.parity ^ 1);
    memory.residual_loaded[cursor.stage].arrive_and_expect(Finish::kUnitBytes);
    Barrier& loaded = memory.residual_loaded[cursor.stage];
    char* to = memory.staging + cursor.stage * Finish::kUnitBytes;
    column += unit % Finish::kUnitsAcross * Finish::kUnitColumns,
        row += unit / Finish::kUnitsAcross * 64;
    if constexpr (K::kMean)
      Load3D(params_.residual, loaded, to, column, 0, row / kImageRows, Cache::kNormal);
    else
      Load2D(params_.residual, loaded, to, column, row, Cache::kNormal);
    cursor.advance();
  }

  const Params& params_;
  SharedMemory<K> memory_;
  Tiles<K> tiles_;
  RingCursor<Finish::kBuffers> cursors_[K::kGroups];
};

}  // namespace sm90
}  // namespace onnxbolt
