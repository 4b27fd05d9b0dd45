// The epilogue of an NCHW output: y [n, k, p, q] with any number of channels. Rows of the product
// are pixels, image by image.
//
// Values go from registers to memory: for each column, eight lanes have eight neighbouring pixels,
// in fp32 a whole sector. An image of a channel begins at any address, so that wider accesses, or
// TMA, would serve only some of them.
#pragma once
#include "sm90/epilogue.h"
#include "sm90/params.h"

namespace onnxbolt {
namespace sm90 {

// As EpilogueShape, but nothing is staged.
template <class Element, class Output, class Chain, int Blocks, int Columns>
struct NchwEpilogueShape : EpilogueShape<Element, Output, Chain, Blocks, Columns> {
  static constexpr int kStagingBytes = 0;
  static_assert(Chain::kTensors == 0, "tensors that are added have their channels last");
};

// The place where a tile of NCHW is stored. `tile`: its first row and column, and the number of
// rows.
class NchwOutput {
 public:
  CUTLASS_DEVICE NchwOutput(const Params& params, const MatrixOutput& tile)
      : params_(params), tile_(tile) {}

  // Stores a thread's values, which are in the order of accumulators (see Accumulators): for each
  // block of 8 columns two values of the tile's row `row` and two of row `row` + 8, from the tile's
  // `column` on.
  template <class Output, int Count>
  CUTLASS_DEVICE void store(const cutlass::Array<Output, Count>& values, int row,
                            int column) const {
    store_row<0>(values, tile_.pixel(row), tile_.column + column);
    store_row<2>(values, tile_.pixel(row + 8), tile_.column + column);
  }

 private:
  template <int First, class Output, int Count>
  CUTLASS_DEVICE void store_row(const cutlass::Array<Output, Count>& values, int64_t at,
                                int column) const {
    if (at < 0) return;
    int pixel = static_cast<int>(at);
    const int image = params_.image.pixels.split(pixel);
    const int64_t plane = params_.plane_pixels;
    Output* y = static_cast<Output*>(params_.y) +
                (int64_t(image) * params_.plane_columns + column) * plane + pixel;
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      const int offset = 2 * i;  // 8 columns for 4 values
      if (column + offset < params_.plane_columns) y[offset * plane] = values[i + First];
      if (column + offset + 1 < params_.plane_columns)
        y[(offset + 1) * plane] = values[i + First + 1];
    }
  }

  const Params& params_;
  const MatrixOutput& tile_;
};

// Has the interface of Epilogue, and its vectors.
template <class Shape>
class NchwEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const NchwOutput& to) {
    this->for_each_part(values, nullptr, unit_row, unit_column, column_end, to,
                        [&](const auto& x, const auto& operands, int column) {
                          const auto rounded = Base::Chain::template finish<typename Base::Output>(
                              x, operands, this->operands_.params);
                          to.store(rounded, unit_row + this->first_row(),
                                   unit_column + column + this->thread_ % 4 * 2);
                        });
  }
};

// Writes both layouts: NHWC as Epilogue does, and from it NCHW without the channels of padding.
template <class Shape, class PlaneType>
class BothEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using Base::Base;

  template <int Size>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const MatrixOutput& rows,
                                  const NchwOutput& nchw) {
    using Output = typename Base::Output;
    cutlass::Array<Output, Size> rounded;
    Base::finish_unit(values, unit_row, unit_column, column_end, rows,
                      reinterpret_cast<uint32_t*>(&rounded));
    const auto converted = cutlass::NumericArrayConverter<PlaneType, Output, Size>{}(rounded);
    nchw.store(converted, unit_row + this->first_row(), unit_column + this->thread_ % 4 * 2);
  }
};

}  // namespace sm90
}  // namespace onnxbolt
