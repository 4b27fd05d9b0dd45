// A product whose rows are normalized before they are stored: the blocks of a cluster hold a row
// together, each of them one tile's columns.
//
// How it works, for each tile of a warpgroup (docs/decisions/norms-in-products.md):
//
// 1. The steps in front of the normalization are applied to the accumulators, which keep the
//    results; where these are an output, too, they are rounded and stored.
// 2. Each thread adds up its columns, four lanes have a row of the block's columns. Their mean and
//    the sum of squared differences from it go to all blocks of the cluster (RowExchange), which
//    combine them in the order of the blocks: the same bits in all blocks, and on every run.
// 3. The accumulators are normalized, and the steps behind are applied and the result stored.
//
// Constraints: a warpgroup has 64 rows; the tiles of a cluster's blocks are all columns, exactly.
#pragma once
#include "sm90/consumer.h"
#include "sm90/moments.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

// An epilogue in two parts: the steps in front of the normalization, and those behind it.
template <bool Centered, class InputChain, class ResultChain, class Both>
struct NormParts {
  using Input = InputChain;
  using Result = ResultChain;
  using Pointwise = Both;
  static constexpr bool kCentered = Centered;
  static_assert(Result::kTensors == 0, "tensors are read in front of the normalization");
};

template <class Before, class... Steps>
struct SplitAtNorm;
template <class... Before, class... Behind>
struct SplitAtNorm<epilogue::Chain<Before...>, epilogue::LayerNorm, Behind...>
    : NormParts<true, epilogue::Chain<Before...>, epilogue::Chain<Behind...>,
                epilogue::Chain<Before..., Behind...>> {};
template <class... Before, class... Behind>
struct SplitAtNorm<epilogue::Chain<Before...>, epilogue::RmsNorm, Behind...>
    : NormParts<false, epilogue::Chain<Before...>, epilogue::Chain<Behind...>,
                epilogue::Chain<Before..., Behind...>> {};
template <class... Before, class Step, class... Steps>
struct SplitAtNorm<epilogue::Chain<Before...>, Step, Steps...>
    : SplitAtNorm<epilogue::Chain<Before..., Step>, Steps...> {};

template <class Chain>
struct NormOf;
template <class... Steps>
struct NormOf<epilogue::Chain<Steps...>> : SplitAtNorm<epilogue::Chain<>, Steps...> {};

constexpr int kTurns = 2;  // a warpgroup's exchanges alternate between so many buffers

// Bytes in which one warpgroup receives statistics: of its 64 rows from each block.
constexpr int ExchangeBytes(int blocks) {
  return blocks > 1 ? kTurns * blocks * 64 * static_cast<int>(sizeof(Moments)) : 0;
}

// Stores: what is normalized is an output, too.
template <class Config, class ElementType, class OutputType, class ChainType, bool Stores>
struct NormShape
    : KernelShape<Config, ElementType, OutputType, typename NormOf<ChainType>::Pointwise,
                  Config::at(Column::kTileN),
                  Config::at(Column::kConsumers) * ExchangeBytes(Config::at(Column::kClusterN)),
                  true> {
  using Base =
      KernelShape<Config, ElementType, OutputType, typename NormOf<ChainType>::Pointwise,
                  Config::at(Column::kTileN),
                  Config::at(Column::kConsumers) * ExchangeBytes(Config::at(Column::kClusterN)),
                  true>;
  using Norm = NormOf<ChainType>;
  static constexpr bool kStores = Stores;
  static constexpr int kRowBlocks = Base::kClusterN;  // blocks that hold a row

  static_assert(std::is_same_v<ElementType, OutputType>, "y has the type of x");
  static_assert(Base::kBlocks == 1 && !Base::kSwapped && !Base::kNchw,
                "a warpgroup has 64 rows of the output");
  static_assert(Base::kFold == 1, "a gate would halve the columns of a tile");
  static_assert(Base::kClusterM == 1 && kRowBlocks <= 8, "a cluster that every GPU can place");

  struct Barriers : Base::Barriers {
    Barrier exchanged[Base::kGroups][kTurns];  // the statistics of all blocks have arrived
  };
  static constexpr int kSharedMemory = Base::kOffsetBarriers + sizeof(Barriers);
  static_assert(kSharedMemory <= ArchOf<Config>::kSharedMemory,
                "a block needs more shared memory than it can have");
};

struct NormParams : Params {
  CUtensorMap sums;  // the values that are normalized, if they are an output
};

// The exchange of one warpgroup with the same warpgroup of the cluster's other blocks.
//
// A buffer is written again two tiles later. No block is that far ahead: it has waited for the
// statistics of the tile between, which another block sends behind its reads of the buffer.
template <class K>
class RowExchange {
 public:
  CUTLASS_DEVICE RowExchange(SharedMemory<K> memory, int group, int rank)
      : received_(reinterpret_cast<Moments*>(memory.base + K::kOffsetExtra) +
                  group * kTurns * kTurnSlots),
        exchanged_(memory.barriers().exchanged[group]),
        rank_(rank),
        thread_(threadIdx.x % 128) {}

  // Replaces the statistics of this block's columns of two rows, `row` and 8 below, by those of the
  // whole rows. The four lanes of a row have the same ones, and every thread makes the call.
  CUTLASS_DEVICE void combine(Moments (&rows)[2], int row) {
    if constexpr (K::kRowBlocks > 1) {
      const int turn = exchanges_ % kTurns;
      Barrier& arrived = exchanged_[turn];
      Moments* const slots = received_ + turn * kTurnSlots + row;
      if (thread_ == 0) arrived.arrive_and_expect(kTurnSlots * sizeof(Moments));
      send(rows, slots, arrived);
      arrived.wait_for_cluster(exchanges_ / kTurns & 1);
      rows[0] = whole(slots), rows[1] = whole(slots + 8);
      ++exchanges_;
      __syncwarp();  // lanes sent to different numbers of blocks
    }
  }

 private:
  static constexpr int kTurnSlots = K::kRowBlocks * 64;

  // Each of a row's four lanes sends to another block, and to the fourth behind it.
  CUTLASS_DEVICE void send(const Moments (&rows)[2], Moments* slots, const Barrier& arrived) const {
    const uint32_t own = SharedAddress(slots + rank_ * 64), barrier = arrived.address();
#pragma unroll
    for (int i = 0; i < K::kRowBlocks; i += 4) {
      const int block = i + thread_ % 4;
      if (block >= K::kRowBlocks) break;
      const uint32_t to = AddressIn(block, own), report = AddressIn(block, barrier);
      Send(to, report, rows[0].mean, rows[0].squares);
      Send(to + 8 * sizeof(Moments), report, rows[1].mean, rows[1].squares);
    }
  }

  // Chan's formula for parts of equal size.
  CUTLASS_DEVICE static Moments whole(const Moments* slots) {
    Moments parts[K::kRowBlocks], row{0.f, 0.f};
#pragma unroll
    for (int i = 0; i < K::kRowBlocks; ++i) {
      parts[i] = slots[i * 64];
      row.mean += parts[i].mean;
    }
    row.mean /= K::kRowBlocks;
#pragma unroll
    for (int i = 0; i < K::kRowBlocks; ++i) {
      const float apart = parts[i].mean - row.mean;
      row.squares += parts[i].squares + K::kTileN * apart * apart;
    }
    return row;
  }

  Moments* received_;
  Barrier* exchanged_;
  int rank_, thread_, exchanges_ = 0;
};

// The epilogue of one warpgroup. All 128 threads make every call.
template <class K>
class NormEpilogue : public Epilogue<typename K::Finish> {
 public:
  using Shape = typename K::Finish;
  using Base = Epilogue<Shape>;
  using Values = Accumulators<K::kTileN>;

  CUTLASS_DEVICE NormEpilogue(const NormParams& params, SharedMemory<K> memory, int group, int rank)
      : Base(memory.epilogue(group), params.operands, 1 + group), exchange_(memory, group, rank) {}

  // Finishes a tile of 64 rows; `sums` is where what is normalized is stored, if it is.
  CUTLASS_DEVICE void finish_tile(Values& values, const MatrixOutput& to,
                                  const MatrixOutput& sums) {
    apply_input(values, to, sums);
    Moments rows[2] = {MomentsOf<Norm::kCentered>(values, 0),
                       MomentsOf<Norm::kCentered>(values, 2)};
    exchange_.combine(rows, this->first_row());
    normalize(values, rows);
    store_result(values, to);
  }

 private:
  using Norm = typename K::Norm;
  using Input = typename Norm::Input;
  using Result = typename Norm::Result;
  using Output = typename Base::Output;
  static constexpr int kUnits = Shape::kUnits, kUnitColumns = Shape::kUnitColumns;
  static constexpr float kColumns = K::kTileN * K::kRowBlocks;  // all columns of a row

  // The values become what is normalized: as other nodes read it where it is stored.
  CUTLASS_DEVICE void apply_input(Values& values, const MatrixOutput& to,
                                  const MatrixOutput& sums) {
    if constexpr (!Shape::kResidual) await_stores<0>();  // those of the tile before
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      char* buffer = buffer_of(unit);
      if constexpr (Shape::kResidual)
        this->memory_.residual_loaded[unit].wait(this->cursor_.parity);
      float* of_unit = values + unit * kUnitColumns / 2;
      this->for_each_part(of_unit, buffer, 0, unit * kUnitColumns, K::kTileN * K::kRowBlocks, to,
                          [&](const auto& x, const auto& operands, int column) {
                            apply_part(x, operands, buffer, column, of_unit + column / 2);
                          });
      if constexpr (K::kStores) store_unit(unit, buffer, sums);
    }
    __syncwarp();  // all lanes have read the residual
  }

  template <int Count>
  CUTLASS_DEVICE void apply_part(const cutlass::Array<float, Count>& x,
                                 const typename Base::Chain::template Operands<Count>& operands,
                                 char* buffer, int column, float* values) const {
    typename Input::template Operands<Count> own;
#pragma unroll
    for (int v = 0; v < Input::kVectors; ++v) own.vectors[v] = operands.vectors[v];
#pragma unroll
    for (int t = 0; t < Input::kTensors; ++t) own.tensors[t] = operands.tensors[t];
    cutlass::Array<float, Count> results =
        Input::template apply<Output>(x, own, this->operands_.params);
    if constexpr (K::kStores) {
      const auto rounded = cutlass::NumericArrayConverter<Output, float, Count>{}(results);
      this->template write_staged<2 * Count>(buffer, column, rounded);
      results = cutlass::NumericArrayConverter<float, Output, Count>{}(rounded);
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] = results[i];
  }

  CUTLASS_DEVICE void normalize(Values& values, const Moments (&rows)[2]) const {
    const float epsilon = this->operands_.params[Input::kParams];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float scale = rsqrtf(rows[row].squares / kColumns + epsilon);
#pragma unroll
      for (int i = 2 * row; i < K::kTileN / 2; i += 4) {
        values[i] = (values[i] - rows[row].mean) * scale;
        values[i + 1] = (values[i + 1] - rows[row].mean) * scale;
      }
    }
  }

  CUTLASS_DEVICE void store_result(const Values& values, const MatrixOutput& to) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      char* buffer = buffer_of(unit);
      if constexpr (K::kStores)
        await_stores<kUnits - 1>();  // until this unit's sums are read
      else
        __syncwarp();
      result_from<0>(values + unit * kUnitColumns / 2, unit * kUnitColumns, buffer);
      store_unit(unit, buffer, to);
      if constexpr (Shape::kResidual) {
        if (unit > 0) release<1>(unit - 1);
      }
    }
    if constexpr (Shape::kResidual) {
      release<0>(kUnits - 1);
      this->cursor_.parity ^= 1;
    }
  }

  // The steps behind the normalization, for the unit's columns from `Column` on.
  template <int Column>
  CUTLASS_DEVICE void result_from(const float* values, int unit_column, char* buffer) const {
    constexpr int kPart = Base::PartOf(kUnitColumns - Column), kCount = kPart / 2;
    typename Result::template Operands<kCount> operands;
    this->template read_vectors<kCount, Result, Input::kVectors>(operands, unit_column + Column);
    cutlass::Array<float, kCount> x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = values[Column / 2 + i];
    this->template write_staged<kPart>(
        buffer, Column,
        Result::template finish<Output>(x, operands, this->operands_.params + Input::kParams + 1));
    if constexpr (Column + kPart < kUnitColumns)
      result_from<Column + kPart>(values, unit_column, buffer);
  }

  // Stores this warp's rows of a unit.
  CUTLASS_DEVICE void store_unit(int unit, char* buffer, const MatrixOutput& to) const {
    FenceAsyncProxy();
    __syncwarp();
    if (this->thread_ % 32 != 0) return;
    const int row = this->warp_ * kStoredRows;
    to.store(buffer + row * Shape::kRowBytes, row, unit * kUnitColumns);
    CommitStores();
  }

  // Waits until at most `Groups` of this warp's last stores read shared memory.
  template <int Groups>
  CUTLASS_DEVICE void await_stores() const {
    if (this->thread_ % 32 == 0) WaitForStores<Groups>();
    __syncwarp();
  }

  // Gives a unit's buffer to the next tile's residual once its result has been read.
  template <int Groups>
  CUTLASS_DEVICE void release(int unit) const {
    if (this->thread_ % 32 != 0) return;
    WaitForStores<Groups>();
    this->memory_.residual_free[unit].arrive();
  }

  CUTLASS_DEVICE char* buffer_of(int unit) const {
    return this->memory_.staging + unit * Shape::kUnitBytes;
  }

  RowExchange<K> exchange_;
};

// The end of a tile for Consumer.
template <class K>
class NormTileEnd {
 public:
  using Params = NormParams;
  using Sums = typename TileEnd<K>::Sums;
  static constexpr int kBlocksApart = 0, kStagesBehind = 0;

  CUTLASS_DEVICE NormTileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : params_(params), epilogue_(params, memory, group, rank) {}

  CUTLASS_DEVICE void fetch(Origin tile) { epilogue_.fetch_vectors(tile.column, params_.columns); }
  CUTLASS_DEVICE void keep() { epilogue_.keep_vectors(); }
  CUTLASS_DEVICE void finish(Sums& sums, const MatrixOutput& to) {
    epilogue_.finish_tile(sums[0], to, {params_.sums, to.row, to.column, to.rows});
  }
  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

 private:
  const Params& params_;
  NormEpilogue<K> epilogue_;
};

// The kernel: PersistentKernel (sm90/persistent.h) with another end of a tile.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    NormKernel(const __grid_constant__ NormParams params) {
  extern __shared__ __align__(1024) char shared[];
  const SharedMemory<K> memory{shared};
  if (threadIdx.x == 0) {
    PrefetchMaps<K>(params);
    for (auto& turns : memory.barriers().exchanged) {
      for (Barrier& arrived : turns) arrived.init(1);
    }
    InitializeBarriers<K>(memory.barriers());
  }
  if constexpr (K::kRowBlocks > 1)
    SyncCluster();  // no block sends to a barrier that is not initialized
  else
    __syncthreads();
  LaunchDependents();
  SplitRoles<K>(
      [&](int warp) {
        if (warp == 0 && ElectOne()) Producer<K, false>(params, memory).run();
        if constexpr (K::Finish::kResidual) {
          if (warp == 1 && ElectOne()) ResidualProducer<K>(params, memory).run();
        }
      },
      [&](int group) { Consumer<K, NormTileEnd<K>>(params, memory, group).run(); });
  if constexpr (K::kRowBlocks > 1) {
    __syncwarp();
    SyncCluster();  // until the other blocks have received what this one has sent
  }
}

}  // namespace sm90
}  // namespace onnxbolt
