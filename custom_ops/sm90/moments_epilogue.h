// Statistics of rows on their way from one product to the next: the norm between them is folded
// into the second one (docs/decisions/norms-in-products.md).
//
// How it works:
//
// 1. A product whose steps end in Moments writes the statistics of each row of its result, of the
//    values as they are stored, a part for each unit of the epilogue.
// 2. A product that begins with FoldedLayerNorm or FoldedRmsNorm reads those of its input's rows.
//    While consumers multiply a tile, two warps of the producer's warpgroup combine the parts of
//    its rows, and write the mean and the scale of each row into shared memory. The first step of
//    the epilogue applies them to the accumulators.
//
// Why it cannot hang: the rows of a block's tiles go through a ring of buffers, two for each tile
// that is under way. The combining warps wait for `scales_free` alone, which consumers give at the
// end of the tile that had the buffer before. A consumer waits for `scales_ready` behind its main
// loop. So take the earliest tile whose epilogue does not end. Its main loop ends, since that waits
// for main loops and for epilogues of earlier tiles alone. The combining warps reach it, since all
// buffers up to its own were those of earlier tiles, whose epilogues end. So its rows are combined,
// and its epilogue goes on. A pingpong warpgroup has two buffers of the ring to itself, so that
// both sides take part in every phase of a buffer's barriers, and no wait can miss one. Where
// blocks share a tile's k-blocks, a block has one tile: the combining warps wait for no buffer and
// end, and the barriers of the cluster, where the other warps meet, do not wait for threads that
// have ended.
//
// Constraints: elements have 2 bytes, and columns (of the input, of the result) are multiples of
// kPartColumns.
#pragma once
#include "sm90/consumer.h"
#include "sm90/moments.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

struct MomentsParams : Params {
  RowParts of_input;
  Moments* of_result;  // [parts of a row of the result, rows]
};

// Buffers for the means and scales of a tile's rows: two for each tile that is under way.
template <class Config>
constexpr int kScaleBuffers =
    2 * (Config::at(Column::kSchedule) == kPingpong ? Config::at(Column::kConsumers) : 1);

template <class Config>
constexpr int kScaleBytes =
    kScaleBuffers<Config> * Config::at(Column::kTileM) * static_cast<int>(sizeof(RowScale));

// The place where a tile is stored, and the means and scales of the warpgroup's rows.
struct NormalizedOutput : MatrixOutput {
  const RowScale* scales;

  CUTLASS_DEVICE NormalizedOutput(const MatrixOutput& tile, const RowScale* scales)
      : MatrixOutput(tile), scales(scales) {}

  CUTLASS_DEVICE RowScale row_scale(int tile_row) const { return scales[tile_row]; }
};

// Has the interface of Epilogue. Writes: the statistics of the result are an output.
template <class Shape, bool Writes>
class MomentsEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  CUTLASS_DEVICE void use(const MomentsParams& params) { params_ = &params; }

  // Takes the means and scales of the warpgroup's rows of the next tile.
  CUTLASS_DEVICE void use(const RowScale* scales) { scales_ = scales; }

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const MatrixOutput& to) {
    const NormalizedOutput rows(to, scales_);  // nothing reads scales where there are none
    if constexpr (Writes) {
      cutlass::Array<Output, Size> rounded;
      Base::finish_unit(values, unit_row, unit_column, column_end, rows,
                        reinterpret_cast<uint32_t*>(&rounded));
      if (to.column + unit_column < column_end)
        write(rounded, to.row + unit_row + this->first_row(), to.column + unit_column);
    } else {
      Base::finish_unit(values, unit_row, unit_column, column_end, rows);
    }
  }

 private:
  using Output = typename Base::Output;

  template <int Size>
  CUTLASS_DEVICE void write(const cutlass::Array<Output, Size>& rounded, int row,
                            int column) const {
    const auto values = cutlass::NumericArrayConverter<float, Output, Size>{}(rounded);
    const int rows = params_->rows;
    WriteMoments(reinterpret_cast<const float (&)[Size]>(values),
                 params_->of_result + int64_t(column / kPartColumns) * rows, row, rows);
  }

  const MomentsParams* params_;
  const RowScale* scales_ = nullptr;
};

// True for steps that read or write statistics of rows.
template <class Chain>
constexpr bool HasMoments =
    Chain::kNormalizesInput || epilogue::Without<epilogue::Moments, Chain>::kFound;

// The shape but for the barriers.
template <class Config, class ElementType, class OutputType, class ChainType>
using PointwiseShape =
    KernelShape<Config, ElementType, OutputType,
                typename epilogue::Without<epilogue::Moments, ChainType>::Pointwise,
                Config::at(Column::kTileN) / ChainType::kFold,
                ChainType::kNormalizesInput ? kScaleBytes<Config> : 0>;

// A kernel whose steps begin with a norm of the input, or end in Moments, or both.
template <class Config, class ElementType, class OutputType, class ChainType>
struct MomentsShape : PointwiseShape<Config, ElementType, OutputType, ChainType> {
  using Base = PointwiseShape<Config, ElementType, OutputType, ChainType>;
  static constexpr bool kReads = ChainType::kNormalizesInput,
                        kWrites = epilogue::Without<epilogue::Moments, ChainType>::kFound;
  using Finish = typename Base::Finish;
  using Epilogue = MomentsEpilogue<Finish, kWrites>;

  static constexpr int kScaleBuffers = sm90::kScaleBuffers<Config>;
  struct ReadersBarriers : Base::Barriers {
    Barrier scales_ready[kScaleBuffers];  // one arrival of each combining warp
    Barrier scales_free[kScaleBuffers];   // one arrival of each warp that read them
  };
  using Barriers = std::conditional_t<kReads, ReadersBarriers, typename Base::Barriers>;
  static constexpr int kSharedMemory = Base::kOffsetBarriers + sizeof(Barriers);

  static_assert(kSharedMemory <= ArchOf<Config>::kSharedMemory,
                "a block needs more shared memory than it can have");
  static_assert(!Base::kSwapped && !Base::kNchw, "units are of the output's rows");
  static_assert(!kWrites || Finish::kUnitColumns == kPartColumns, "a unit is a part");
};

// The means and scales of a tile's rows in shared memory.
template <class K>
CUTLASS_DEVICE RowScale* ScaleBuffer(SharedMemory<K> memory, int buffer) {
  return reinterpret_cast<RowScale*>(memory.base + K::kOffsetExtra) + buffer * K::kTileM;
}

// The warps of the producer's warpgroup that load neither operands nor residuals.
constexpr int kFirstCombiningWarp = 2, kCombiningWarps = 2;

// Combines the statistics of the rows of all tiles of a block. The threads of the combining warps
// make all calls.
template <class K>
class ScaleProducer {
 public:
  CUTLASS_DEVICE ScaleProducer(const MomentsParams& params, SharedMemory<K> memory)
      : params_(params), memory_(memory), tiles_(params.schedule, params.split) {}

  CUTLASS_DEVICE void run() {
    WaitForPredecessors();  // they write the statistics
    const int thread = static_cast<int>(threadIdx.x) - 32 * kFirstCombiningWarp;
    const float epsilon = params_.operands.params[0];
    auto& barriers = memory_.barriers();
    RingCursor<K::kScaleBuffers> at;
    for (int tile = tiles_.first; tile < params_.schedule.count(); tile += tiles_.step) {
      barriers.scales_free[at.stage].wait(at.parity ^ 1);
      CombineRows<K::kTileM, K::Chain::First::kCenters>(params_.of_input, tiles_.origin(tile).row,
                                                        epsilon, thread,
                                                        ScaleBuffer(memory_, at.stage));
      __syncwarp();
      if (thread % 32 == 0) barriers.scales_ready[at.stage].arrive();
      at.advance();
    }
  }

 private:
  const MomentsParams& params_;
  SharedMemory<K> memory_;
  Tiles<K> tiles_;
};

// The end of a tile for Consumer.
template <class K>
class MomentsTileEnd : public TileEnd<K> {
 public:
  using Params = MomentsParams;

  CUTLASS_DEVICE static void initialize(typename K::Barriers& barriers) {
    if constexpr (K::kReads) {
      for (int i = 0; i < K::kScaleBuffers; ++i) {
        barriers.scales_ready[i].init(kCombiningWarps);
        barriers.scales_free[i].init(K::kGroupsOfTile * kWarps);
      }
    }
  }

  CUTLASS_DEVICE static void assist(const Params& params, SharedMemory<K> memory, int warp) {
    if constexpr (K::kReads) {
      if (warp >= kFirstCombiningWarp) ScaleProducer<K>(params, memory).run();
    }
  }

  CUTLASS_DEVICE MomentsTileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : TileEnd<K>(params, memory, group, rank) {
    this->epilogue_.use(params);
    if constexpr (K::kReads && K::kIsPingpong) at_.advance(group);
  }

  CUTLASS_DEVICE void finish(typename TileEnd<K>::Sums& sums, const MatrixOutput& to) {
    if constexpr (K::kReads) {
      auto& barriers = this->memory_.barriers();
      barriers.scales_ready[at_.stage].wait(at_.parity);
      this->epilogue_.use(ScaleBuffer(this->memory_, at_.stage) +
                          (K::kIsPingpong ? 0 : this->group_ * K::kGroupRows));
      TileEnd<K>::finish(sums, to);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barriers.scales_free[at_.stage].arrive();
      at_.advance(K::kIsPingpong ? K::kGroups : 1);
    } else {
      TileEnd<K>::finish(sums, to);
    }
  }

 private:
  RingCursor<K::kScaleBuffers> at_;
};

}  // namespace sm90
}  // namespace onnxbolt
