// A consumer warpgroup: the main loop multiplies the ring's stages by wgmma, then the epilogue
// finishes the accumulators.
//
// How it works, for each tile:
//
// 1. Wait until a stage is full, issue its wgmma instructions, and leave them under way.
// 2. Give back the stage before, whose products are complete by then.
// 3. After the last k-block, wait for all products and run the epilogue on the accumulators.
//
// Pingpong: two or three warpgroups have tiles of their own, and a barrier passes the turn for the
// main loop from one to the next. Without turns a warpgroup that skips the stages of other tiles
// could take a phase that has not begun for one that is complete.
//
// Constraints: a warpgroup's rows are multiples of 64 (wgmma's M). All 128 threads make every call.
#pragma once
#include <algorithm>

#include "runtime/dependent_launch.h"
#include "sm90/params.h"
#include "sm90/split_k.h"
#include "sm90/wgmma_integers.h"

namespace onnxbolt {
namespace sm90 {

// Finishes a tile behind its main loop: the epilogue, and before it the exchange of partial sums if
// blocks of a cluster share the tile.
template <class K>
class TileEnd {
 public:
  using Params = typename K::ProductParams;
  using Finish = typename K::Finish;
  // One set of accumulators for each 64 rows.
  using Sum = typename K::Sum;
  using Sums = Accumulators<K::kProductColumns, Sum>[K::kBlocks];

  // A block's last tile has no main loop behind it that could hide its epilogue. So its last
  // kBlocksApart k-blocks are multiplied 64 rows at a time, and the first rows are finished while
  // the others' products run. All stages of these k-blocks, and the one before, stay in use until
  // then.
  static constexpr int kBlocksApart =
      K::kBlocks > 1 && !K::kPromotes ? std::min(3, K::kStages - 1) : 0;
  // Stages of the ring that further products use behind each tile.
  static constexpr int kStagesBehind = 0;
  static_assert(kBlocksApart * (K::kBlocks - 1) <= 7,
                "as many groups of products as a wait can leave under way");

  CUTLASS_DEVICE TileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : params_(params),
        memory_(memory),
        group_(group),
        rank_(rank),
        epilogue_(memory.epilogue(group), params.operands, 1 + group) {}

  // fetch: before the main loop of a tile of the result; keep: after it.
  CUTLASS_DEVICE void fetch(Origin tile) { epilogue_.fetch_vectors(tile.column, params_.columns); }
  CUTLASS_DEVICE void keep() { epilogue_.keep_vectors(); }

  CUTLASS_DEVICE void finish(Sums& sums, const MatrixOutput& to) {
    if constexpr (K::kCanSplit) {
      if (params_.split > 1) return finish_split(sums, to);
    }
    finish_rows<0>(sums, to);
  }

  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

 private:
  // Accumulators of a thread for one unit.
  static constexpr int kUnitValues = Finish::kUnitColumns * K::kFold / 2;

  // Finishes rows 64 M and up.
  template <int M>
  CUTLASS_DEVICE void finish_rows(Sums& sums, const MatrixOutput& to) {
    if constexpr (kBlocksApart > 0) {
      WaitForProducts<kBlocksApart*(K::kBlocks - 1 - M)>();
      PinAccumulators(sums[M]);
    }
#pragma unroll
    for (int unit = 0; unit < Finish::kUnitsAcross; ++unit)
      finish_unit(sums, M, unit * Finish::kUnitColumns, unit * kUnitValues, to);
    if constexpr (M + 1 < K::kBlocks) finish_rows<M + 1>(sums, to);
  }

  CUTLASS_DEVICE static void complete(Sums& sums) {
    WaitForProducts<0>();
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) PinAccumulators(sums[m]);
  }

  CUTLASS_DEVICE void finish_split(Sums& sums, const MatrixOutput& to) {
    complete(sums);  // they are complete, but the compiler sees other ways to get here
    const SplitSums<K> split(memory_, group_, params_.split, rank_);
    SyncCluster();  // until no block reads its ring, which the exchange overwrites
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
    const auto& values = reinterpret_cast<const Sum(&)[kUnitValues]>(sums[m][value]);
    if constexpr (K::kCodes)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, CodesOutput<K>(params_, to));
    else if constexpr (K::kNchw)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, NchwOutput(params_, to));
    else if constexpr (K::kBoth)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, to, NchwOutput(params_, to));
    else if constexpr (K::kMean)
      epilogue_.finish_unit(values, m * 64, column, params_.columns, MeanOutput(params_, to));
    else
      epilogue_.finish_unit(values, m * 64, column, params_.columns, to);
  }

  // Calls visit(unit, block of 64 rows, first column, first accumulator) for each unit. It is
  // unrolled, since accumulators are registers.
  template <class Visit>
  CUTLASS_DEVICE static void for_each_unit(const Visit& visit) {
#pragma unroll
    for (int unit = 0; unit < Finish::kUnits; ++unit) {
      const int column = unit % Finish::kUnitsAcross * Finish::kUnitColumns;
      visit(unit, unit / Finish::kUnitsAcross, column, unit % Finish::kUnitsAcross * kUnitValues);
    }
  }

  const Params& params_;
  SharedMemory<K> memory_;
  int group_, rank_;

 protected:
  typename K::Epilogue epilogue_;
};

// The main loop over a block's tiles. End: what finishes a tile's accumulators, such as TileEnd.
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
    WaitForPredecessors();  // this thread reads the epilogue's operands
    const int skip = K::kIsPingpong ? group_ : 0, groups = K::kIsPingpong ? K::kGroups : 1;
    pass_tiles(tiles_.first, skip);
    if constexpr (K::kIsResident) barriers_.weights.wait(0);
    Sums sums;
    for (int tile = tiles_.first + skip * tiles_.step; tile < params_.schedule.count();
         tile += groups * tiles_.step) {
      const Origin origin = tiles_.origin(tile);
      range_.enter(params_, origin.column);
      const bool fits_apart = params_.split == 1 && range_.count() >= End::kBlocksApart;
      end_.fetch({origin.row, origin.column / K::kFold});
      begin_turn();
      multiply(sums, fits_apart && tile + tiles_.step >= params_.schedule.count());
      if constexpr (End::kStagesBehind > 0) end_.weights_at(stage_);
      end_.finish(sums, {params_.d, origin.row + (K::kIsPingpong ? 0 : group_ * K::kGroupRows),
                         origin.column / K::kFold, params_.rows});
      release_behind();
      pass_tiles(tile + tiles_.step, groups - 1);
    }
    end_.drain();
  }

 private:
  // Pingpong: waits for this warpgroup's turn. A wait distinguishes a phase from the one before it
  // alone, and this warpgroup skips the stages of the others' tiles: without turns it could take a
  // phase that has not begun for one that is complete.
  CUTLASS_DEVICE void begin_turn() {
    if constexpr (K::kIsPingpong) barriers_.turn[group_].wait((turns_++ & 1) ^ (group_ == 0));
  }

  CUTLASS_DEVICE void end_turn() {
    if constexpr (K::kIsPingpong) {
      if (thread_ == 0) barriers_.turn[(group_ + 1) % K::kGroups].arrive();
    }
  }

  // The main loop. A stage is given back once the products of the next stage are under way.
  CUTLASS_DEVICE void multiply(Sums& sums, bool apart) {
    if constexpr (K::kTakesTurns) return multiply_in_turns(sums);
    if constexpr (K::kPromotes) return multiply_promoting(sums);
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
    end_.keep();  // hidden behind the last products
    WaitForProducts<0>();
    pin(sums);
    release(previous);
  }

  // The main loop that adds up each k-block's sums apart. Meanwhile other warpgroups multiply. Sums
  // begin at 0, since telling the first k-block apart takes as many instructions as adding it.
  CUTLASS_DEVICE void multiply_promoting(Sums& sums) {
    Sums parts;
    clear(sums);
    for (int block = range_.first; block < range_.end; ++block, stage_.advance()) {
      barriers_.full[stage_.stage].wait(stage_.parity);
      pin(parts);
      BeginProducts();
      multiply_rows(parts, 0, K::kBlocks, stage_.stage, K::kIsResident ? block : stage_.stage,
                    false);
      CommitProducts();
      if (block + 1 == range_.end) end_turn();
      WaitForProducts<0>();
      pin(parts);
      release(stage_.stage);
      add(sums, parts);
    }
    end_.keep();
  }

  // The same with two sets of sums of k-blocks: while one is added, the products of the other are
  // under way. Those of the first k-block are where the others are added.
  CUTLASS_DEVICE void multiply_in_turns(Sums& sums) {
    add_up(sums);
    end_.keep();
  }

  CUTLASS_DEVICE void add_up(Sums& sums) {
    int block = range_.first, stage = begin_part(sums, block++);
    if (block >= range_.end) return complete<0>(sums, stage);
    Sums one, other;
    stage = begin_behind(sums, stage, one, block++);
    while (block < range_.end) {
      stage = begin_behind(one, stage, other, block++);
      add(sums, one);
      if (block >= range_.end) {
        complete<0>(other, stage);
        return add(sums, other);
      }
      stage = begin_behind(other, stage, one, block++);
      add(sums, other);
    }
    complete<0>(one, stage);
    add(sums, one);
  }

  // Starts the products of one k-block. Returns its stage.
  CUTLASS_DEVICE int begin_part(Sums& part, int block) {
    const int stage = stage_.stage;
    barriers_.full[stage].wait(stage_.parity);
    pin(part);
    BeginProducts();
    multiply_rows(part, 0, K::kBlocks, stage, K::kIsResident ? block : stage, false);
    CommitProducts();
    if (block + 1 == range_.end) end_turn();
    stage_.advance();
    return stage;
  }

  // Starts the products of one k-block, and waits for those of the one before, `part` of `stage`.
  CUTLASS_DEVICE int begin_behind(Sums& part, int stage, Sums& next, int block) {
    const int begun = begin_part(next, block);
    complete<1>(part, stage);
    return begun;
  }

  // Waits for the products of a k-block, behind which `Groups` were started.
  template <int Groups>
  CUTLASS_DEVICE void complete(Sums& part, int stage) {
    WaitForProducts<Groups>();
    pin(part);
    release(stage);
  }

  CUTLASS_DEVICE static void clear(Sums& sums) {
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < K::kProductColumns / 2; ++i) sums[m][i] = 0;
    }
  }

  CUTLASS_DEVICE static void add(Sums& sums, const Sums& part) {
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < K::kProductColumns / 2; ++i) sums[m][i] += part[m][i];
    }
  }

  // Passes the stages of `count` tiles from `tile` on, which are those of other warpgroups.
  CUTLASS_DEVICE void pass_tiles(int tile, int count) {
    if constexpr (K::Range::kSkipsTaps) {
      typename K::Range range = range_;
      for (; count > 0 && tile < params_.schedule.count(); --count, tile += tiles_.step) {
        range.enter(params_, tiles_.origin(tile).column);
        stage_.advance(range.count() + End::kStagesBehind);
      }
    } else {
      stage_.advance(count * (range_.count() + End::kStagesBehind));
    }
  }

  // Waits for the last stages before the turn ends: the next warpgroup's waits distinguish one
  // phase.
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

  // The last k-blocks of a block's last tile. Their products are left under way (see TileEnd), and
  // no load waits for their stages.
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

  // Multiplies one k-block for the rows from 64 `first` to 64 `end`.
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
          // descriptors count addresses in units of 16 bytes
          const uint64_t at_a =
              a + (box * K::kProductRows * K::kBoxBytes + m * 64 * K::kBoxBytes) / 16 + 2 * k;
          const uint64_t at_b = b + box * K::kProductColumns * K::kBoxBytes / 16 + 2 * k;
          WgmmaOf<typename K::Element, K::kProductColumns>::template multiply<typename K::Element>(
              sums[m], at_a, at_b, accumulate || box + k > 0);
        }
      }
    }
  }

  CUTLASS_DEVICE static void pin(Sums& sums) {
#pragma unroll
    for (int m = 0; m < K::kBlocks; ++m) PinAccumulators(sums[m]);
  }

  // Gives a stage back to every block of the cluster that loads into it.
  CUTLASS_DEVICE void release(int stage) {
    if constexpr (K::kClusterSize == 1) {
      if (thread_ == 0) barriers_.empty[stage].arrive();
    } else {
      const int row = tiles_.rank % K::kClusterM, column = tiles_.rank / K::kClusterM;
      const bool loads_for_us = thread_ % K::kClusterM == row || thread_ / K::kClusterM == column;
      if (thread_ < K::kClusterSize && loads_for_us) barriers_.empty[stage].arrive_at(thread_);
    }
  }

  const typename End::Params& params_;
  SharedMemory<K> memory_;
  typename K::Barriers& barriers_;
  Tiles<K> tiles_;
  typename K::Range range_;
  int group_, thread_, turns_ = 0;
  RingCursor<K::kStages> stage_;
  End end_;
};

}  // namespace sm90
}  // namespace onnxbolt
