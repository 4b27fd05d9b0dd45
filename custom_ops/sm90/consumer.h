// A consumer warpgroup: wgmma over the ring's stages, then the epilogue on the accumulators.
#pragma once
#include <algorithm>

#include "runtime/dependent_launch.h"
#include "sm90/params.h"
#include "sm90/split_k.h"

namespace onnxbolt {
namespace sm90 {

// The end of a tile: the sums are the output's, but for the epilogue and what other blocks have of
// them.
template <class K>
class TileEnd {
 public:
  using Params = sm90::Params;
  using Finish = typename K::Finish;
  using Sums = Accumulators<K::kProductColumns>[K::kBlocks];  // of 64 rows each

  // At the end of a block nothing runs under the last tile's epilogue but its own products: over
  // that many k-blocks they are made 64 rows at a time, so that the first rows are finished under
  // the products of the others. Their stages and the one before are all in use until then.
  static constexpr int kBlocksApart = K::kBlocks > 1 ? std::min(3, K::kStages - 1) : 0;
  static constexpr int kStagesBehind = 0;  // of the ring, behind those of a tile's k-blocks
  static_assert(kBlocksApart * (K::kBlocks - 1) <= 7,
                "as many groups of products as a wait can leave under way");

  CUTLASS_DEVICE TileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : params_(params),
        memory_(memory),
        group_(group),
        rank_(rank),
        epilogue_(memory.epilogue(group), params.operands, 1 + group) {}

  // Before and after the main loop.
  CUTLASS_DEVICE void fetch(int column) { epilogue_.fetch_vectors(column, params_.columns); }
  CUTLASS_DEVICE void keep() { epilogue_.keep_vectors(); }

  CUTLASS_DEVICE void finish(Sums& sums, const MatrixOutput& to) {
    if constexpr (K::kCanSplit) {
      if (params_.split > 1) return finish_split(sums, to);
    }
    finish_rows<0>(sums, to);
  }

  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

 private:
  // Block M of 64 rows and those behind it.
  template <int M>
  CUTLASS_DEVICE void finish_rows(Sums& sums, const MatrixOutput& to) {
    if constexpr (kBlocksApart > 0) {
      WaitForProducts<kBlocksApart*(K::kBlocks - 1 - M)>();
      PinAccumulators(sums[M]);
    }
#pragma unroll
    for (int unit = 0; unit < Finish::kUnitsAcross; ++unit)
      finish_unit(sums, M, unit * Finish::kUnitColumns, unit * Finish::kUnitColumns / 2, to);
    if constexpr (M + 1 < K::kBlocks) finish_rows<M + 1>(sums, to);
  }

  CUTLASS_DEVICE static void complete(Sums& sums) {
    WaitForProducts<0>();
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) PinAccumulators(sums[m]);
  }

  CUTLASS_DEVICE void finish_split(Sums& sums, const MatrixOutput& to) {
    complete(sums);  // they are, but the compiler sees other ways to get here
    const SplitSums<K> split(memory_, group_, params_.split, rank_);
    SyncCluster();  // no block reads its ring any more
    for_each_unit([&](int unit, int m, int, int value) {
      if (!split.owns(unit)) split.send(unit, sums[m] + value);
    });
    SyncCluster();
    for_each_unit([&](int unit, int m, int column, int value) {
      if (!split.owns(unit)) return;
      split.receive(unit, sums[m] + value);
      finish_unit(sums, m, column, value, to);
    });
  }

  CUTLASS_DEVICE void finish_unit(const Sums& sums, int m, int column, int value,
                                  const MatrixOutput& to) {
    const auto& values =
        reinterpret_cast<const float (&)[Finish::kUnitColumns / 2]>(sums[m][value]);
    if constexpr (K::kPlanes)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, PlanesOutput(params_, to));
    else if constexpr (K::kBoth)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, to, PlanesOutput(params_, to));
    else if constexpr (K::kMean)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, MeanOutput(params_, to));
    else
      epilogue_.finish_unit(values, m * 64, column, params_.columns, to);
  }

  // visit(unit, block of 64 rows, first column, first accumulator); unrolled, since accumulators
  // are registers.
  template <class Visit>
  CUTLASS_DEVICE static void for_each_unit(const Visit& visit) {
#pragma unroll
    for (int unit = 0; unit < Finish::kUnits; ++unit) {
      const int column = unit % Finish::kUnitsAcross * Finish::kUnitColumns;
      visit(unit, unit / Finish::kUnitsAcross, column, column / 2);
    }
  }

  const Params& params_;
  SharedMemory<K> memory_;
  int group_, rank_;
  typename K::Epilogue epilogue_;
};

// End: what becomes of a tile's sums.
template <class K, class End = TileEnd<K>>
class Consumer {
 public:
  using Sums = typename TileEnd<K>::Sums;

  CUTLASS_DEVICE Consumer(const typename End::Params& params, SharedMemory<K> memory, int group)
      : params_(params),
        memory_(memory),
        barriers_(memory.barriers()),
        tiles_(params.schedule, params.split),
        range_(params, params.split > 1 ? tiles_.rank : 0),
        group_(group),
        thread_(threadIdx.x % 128),
        end_(params, memory, group, tiles_.rank) {}

  CUTLASS_DEVICE void run() {
    WaitForPredecessors();  // the operands of the epilogue are read by this thread
    const bool fits_apart = params_.split == 1 && range_.count() >= End::kBlocksApart;
    const int skip = K::kIsPingpong ? group_ : 0, groups = K::kIsPingpong ? K::kGroups : 1;
    stage_.advance(skip * stages_of_tile());
    if constexpr (K::kIsResident) barriers_.weights.wait(0);
    Sums sums;
    for (int tile = tiles_.first + skip * tiles_.step; tile < params_.schedule.count();
         tile += groups * tiles_.step) {
      const Origin origin = tiles_.origin(tile);
      end_.fetch(origin.column);
      begin_turn();
      multiply(sums, fits_apart && tile + tiles_.step >= params_.schedule.count());
      if constexpr (End::kStagesBehind > 0) end_.weights_at(stage_);
      end_.finish(sums, {params_.d, origin.row + (K::kIsPingpong ? 0 : group_ * K::kGroupRows),
                         origin.column, params_.rows});
      release_behind();
      stage_.advance((groups - 1) * stages_of_tile());
    }
    end_.drain();
  }

 private:
  // A barrier's wait sees one phase ahead only, and in pingpong a warpgroup skips the stages of the
  // others' tiles: without turns it would take a phase that has not begun for one that is complete.
  CUTLASS_DEVICE void begin_turn() {
    if constexpr (K::kIsPingpong) barriers_.turn[group_].wait((turns_++ & 1) ^ (group_ == 0));
  }

  CUTLASS_DEVICE void end_turn() {
    if constexpr (K::kIsPingpong) {
      if (thread_ == 0) barriers_.turn[(group_ + 1) % K::kGroups].arrive();
    }
  }

  // The main loop. A stage is given back when the products behind its own are under way.
  CUTLASS_DEVICE void multiply(Sums& sums, bool apart) {
    constexpr int kApart = End::kBlocksApart;
    const int end = range_.end - (apart ? kApart : 0);
    int previous = 0;
    for (int block = range_.first; block < end; ++block, stage_.advance()) {
      barriers_.full[stage_.stage].wait(stage_.parity);
      pin(sums);
      BeginProducts();
      multiply_rows(sums, 0, K::kBlocks, stage_.stage, K::kIsResident ? block : stage_.stage,
                    block > range_.first);
      CommitProducts();
      if (block > range_.first) {
        WaitForProducts<1>();
        release(previous);
      }
      previous = stage_.stage;
    }
    if constexpr (kApart > 0) {
      if (apart) {
        multiply_apart(sums);
        return end_.keep();
      }
    }
    wait_behind();
    end_turn();
    end_.keep();  // under the last products
    WaitForProducts<0>();
    pin(sums);
    release(previous);
  }

  CUTLASS_DEVICE int stages_of_tile() const { return range_.count() + End::kStagesBehind; }

  // Before the turn ends, since the next warpgroup's waits see one phase ahead only.
  CUTLASS_DEVICE void wait_behind() {
    RingCursor<K::kStages> at = stage_;
#pragma unroll
    for (int i = 0; i < End::kStagesBehind; ++i, at.advance())
      barriers_.full[at.stage].wait(at.parity);
  }

  CUTLASS_DEVICE void release_behind() {
#pragma unroll
    for (int i = 0; i < End::kStagesBehind; ++i, stage_.advance()) release(stage_.stage);
  }

  // The last k-blocks of a block's last tile, whose products are left under way (see TileEnd).
  // Nobody waits for their stages.
  CUTLASS_DEVICE void multiply_apart(Sums& sums) {
    pin(sums);
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) {
      RingCursor<K::kStages> at = stage_;
#pragma unroll
      for (int i = End::kBlocksApart; i > 0; --i, at.advance()) {
        const int block = range_.end - i;
        if (m == 0) barriers_.full[at.stage].wait(at.parity);
        BeginProducts();
        multiply_rows(sums, m, m + 1, at.stage, K::kIsResident ? block : at.stage,
                      block > range_.first);
        CommitProducts();
      }
    }
  }

  // Blocks of 64 rows of the product, from `first` to `end`, by one k-block.
  CUTLASS_DEVICE void multiply_rows(Sums& sums, int first, int end, int stage, int block_of_b,
                                    bool accumulate) {
    const char *pixels = memory_.a(stage), *weights = memory_.b(block_of_b);
    const char *rows = K::kSwapped ? weights : pixels, *columns = K::kSwapped ? pixels : weights;
    const uint64_t a = OperandDescriptor(
        rows + (K::kIsPingpong ? 0 : group_ * K::kGroupRows * K::kBoxBytes), K::kBoxBytes);
    const uint64_t b = OperandDescriptor(columns, K::kBoxBytes);
#pragma unroll
    for (int box = 0; box < K::kBoxes; ++box) {
#pragma unroll
      for (int k = 0; k < K::kBoxBytes / 32; ++k) {
#pragma unroll
        for (int m = first; m < end; ++m) {
          // addresses in descriptors count 16 bytes
          const uint64_t at_a =
              a + (box * K::kProductRows * K::kBoxBytes + m * 64 * K::kBoxBytes) / 16 + 2 * k;
          const uint64_t at_b = b + box * K::kProductColumns * K::kBoxBytes / 16 + 2 * k;
          Wgmma<K::kProductColumns>::template multiply<typename K::Element>(
              sums[m], at_a, at_b, accumulate || box + k > 0);
        }
      }
    }
  }

  CUTLASS_DEVICE static void pin(Sums& sums) {
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) PinAccumulators(sums[m]);
  }

  // Tells every block of the cluster that loads into this stage.
  CUTLASS_DEVICE void release(int stage) {
    if constexpr (K::kClusterSize == 1) {
      if (thread_ == 0) barriers_.empty[stage].arrive();
    } else {
      const int row = tiles_.rank % K::kClusterM, column = tiles_.rank / K::kClusterM;
      const bool loads_for_us = thread_ % K::kClusterM == row || thread_ / K::kClusterM == column;
      if (thread_ < K::kClusterSize && loads_for_us) barriers_.empty[stage].arrive_at(thread_);
    }
  }

  const Params& params_;
  SharedMemory<K> memory_;
  typename K::Barriers& barriers_;
  Tiles<K> tiles_;
  BlockRange range_;
  int group_, thread_, turns_ = 0;
  RingCursor<K::kStages> stage_;
  End end_;
};

}  // namespace sm90
}  // namespace onnxbolt
