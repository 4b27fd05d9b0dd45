// The epilogue of a transposed convolution, which is a convolution whose columns are the channels
// of all phases of the output's pixels: each column block of a row is stored at a pixel of its own.
//
// How it works: as sm90/epilogue.h, but each warp stores its 16 rows of a unit itself, 16 bytes a
// lane, since the pixels of neighbouring rows are no box of a tensor. A lane finds the first pixel
// of one row, and the others ask it. 128 bytes of a pixel are whole sectors, as with TMA.
//
// Constraints: a group's channels are multiples of 16 bytes, so that an access has one pixel;
// tensor operands: multiples of a unit's columns, so that all of a unit has one phase.
#pragma once
#include "sm90/persistent.h"
#include "sm90/phase_places.h"

namespace onnxbolt {
namespace sm90 {

template <class Places>
struct PhasedParams : Params {
  Places places;
  bool skips_taps;  // the last phases meet zeros at the first tap
  int taps_h;       // the filter's height
};

// The k-blocks of a tile of columns: without the taps at which all of its phases meet zeros. The
// tiles of a cluster, which share loads, have the same ones, and so do those that share k-blocks.
template <class Places, int ClusterColumns>
struct PhasedRange : BlockRange {
  static constexpr bool kSkipsTaps = true;
  FirstTap taps;

  using BlockRange::BlockRange;

  __device__ void enter(const PhasedParams<Places>& params, int column) {
    if (params.split > 1 || !params.skips_taps) return;
    column = column / ClusterColumns * ClusterColumns;
    taps = FirstTap(params.places, column, column + ClusterColumns);
    const int rows = params.taps_h - taps.r, row = params.image.filter_w - taps.s;
    end = params.blocks_per_tap * rows * row;
  }
};

// A unit's place for operands that threads read directly: all of its columns have one phase.
template <class Places>
struct UnitOfPhase {
  const Places& places;
  const MatrixOutput& tile;
  PhaseOfColumn phase;
  int column;  // that the unit's columns count from

  CUTLASS_DEVICE UnitOfPhase(const Places& places, const MatrixOutput& tile, int unit_column)
      : places(places),
        tile(tile),
        phase(places, tile.column + unit_column),
        column(phase.channel - unit_column) {}

  CUTLASS_DEVICE int64_t pixel(int tile_row) const {
    const int64_t row = tile.pixel(tile_row);
    return row < 0 ? row : PlaceOf(places, PixelOfRow(places, static_cast<int>(row)), phase);
  }
};

// As `Shape`'s, but TMA loads no residual.
template <class Shape, class PlacesType>
struct PhasedEpilogueShape : Shape {
  using Places = PlacesType;
  static constexpr bool kResidual = false;
};

// Has the interface of Epilogue.
template <class Shape>
class PhasedEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Output = typename Base::Output;
  using Params = PhasedParams<typename Shape::Places>;
  using Base::Base;

  CUTLASS_DEVICE void use(const Params& params) { params_ = &params; }

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const MatrixOutput& to) {
    char* buffer = this->memory_.staging;
    const UnitOfPhase unit(params_->places, to, unit_column);
    // columns of operands: those that the unit has of its phase's channels
    const int operands_end = unit.column + column_end - to.column;
    this->for_each_part(
        values, buffer, unit_row, unit_column, operands_end, unit,
        [&](const auto& x, const auto& operands, int column) {
          const auto rounded =
              Base::Chain::template finish<Output>(x, operands, this->operands_.params);
          this->template write_staged<2 * decltype(rounded)::kElements>(buffer, column, rounded);
        });
    OrderStaged();
    store(buffer, unit_row + this->warp_ * kStoredRows, unit_column, column_end, to);
    OrderStaged();  // until all lanes have read what the next unit overwrites
  }

  // Nothing is under way.
  CUTLASS_DEVICE void drain() {}

 private:
  static constexpr int kChunks = Shape::kRowBytes / 16, kPerChunk = 16 / sizeof(Output);
  static_assert(Shape::kRowBytes % 16 == 0, "a row is whole accesses");

  // Orders the warp's accesses of staged values, which are in part instructions that the compiler
  // does not know as such.
  CUTLASS_DEVICE static void OrderStaged() {
    asm volatile("" ::: "memory");
    __syncwarp();
    asm volatile("" ::: "memory");
  }

  // Stores the warp's rows, `first_row` of the tile and the following.
  CUTLASS_DEVICE void store(char* buffer, int first_row, int unit_column, int column_end,
                            const MatrixOutput& to) const {
    const int lane = this->thread_ % 32, columns = column_end - to.column - unit_column;
    const int64_t own_row = to.pixel(first_row + lane % kStoredRows);
    const FirstPixel own = PixelOfRow(params_->places, own_row < 0 ? 0 : static_cast<int>(own_row));
#pragma unroll
    for (int i = 0; i < kStoredRows * kChunks; i += 32) {
      const int index = i + lane, row = index / kChunks % kStoredRows, chunk = index % kChunks;
      const FirstPixel first{__shfl_sync(~0u, own.image, row), __shfl_sync(~0u, own.y, row),
                             __shfl_sync(~0u, own.x, row)};
      const bool valid = index < kStoredRows * kChunks && chunk * kPerChunk < columns &&
                         to.pixel(first_row + row) >= 0;
      if (!valid) continue;
      const PhaseOfColumn phase(params_->places, to.column + unit_column + chunk * kPerChunk);
      const int64_t place = PlaceOf(params_->places, first, phase);
      if (place < 0) continue;
      const int staged = this->warp_ * kStoredRows + row;
      const uint4 value =
          *reinterpret_cast<const uint4*>(buffer + Base::chunk_offset(staged, chunk * kPerChunk));
      Output* y = static_cast<Output*>(params_->y) + place * params_->y_pitch + phase.channel;
      *reinterpret_cast<uint4*>(y) = value;
    }
  }

  const Params* params_ = nullptr;
};

template <class Config, class ElementType, class OutputType, class ChainType>
struct PhasedShape : KernelShape<Config, ElementType, OutputType, ChainType> {
  using Base = KernelShape<Config, ElementType, OutputType, ChainType>;
  static constexpr bool kSlices =
      Config::at(Column::kInstructionN) == 1;  // as SlicedPlaces has them
  using Places = std::conditional_t<kSlices, SlicedPlaces, PhasedPlaces>;
  using Finish = PhasedEpilogueShape<typename Base::Finish, Places>;
  using Epilogue = PhasedEpilogue<Finish>;
  using Range = PhasedRange<Places, Base::kTileN * Base::kClusterN>;

  static_assert(!Base::kSwapped && !Base::kNchw, "units are rows of channels");
  static_assert(ChainType::kFold == 1 && !ChainType::kRotated, "columns are channels");
};

// The end of a tile for Consumer.
template <class K>
class PhasedTileEnd : public TileEnd<K> {
 public:
  using Params = PhasedParams<typename K::Places>;

  CUTLASS_DEVICE PhasedTileEnd(const Params& params, SharedMemory<K> memory, int group, int rank)
      : TileEnd<K>(params, memory, group, rank) {
    this->epilogue_.use(params);
  }
};

}  // namespace sm90
}  // namespace onnxbolt
