// The epilogue of products of 8-bit codes (docs/decisions/quantized.md).
//
// How it works: as sm90/epilogue.h, with sums that may be integers, and with the offsets of the
// zero point of x, which are added before a sum is converted to fp32. Results of 16 and 32 bits are
// staged in the same way.
//
// Results of 8 bits are staged by stmatrix as well, which moves 4 bytes of each thread: four
// neighbouring columns. A thread's accumulators of 16 columns are two pairs, columns 2 j, 2 j + 1,
// 2 j + 8 and 2 j + 9 for j = lane % 4. So TMA brings rows of B in another order
// (DescribeWeights): column 8 h + 2 j + i of the product is column 4 j + 2 h + i of the result,
// for i and h of 0 and 1. Then a thread's four values are columns 4 j to 4 j + 3, and no byte is
// shuffled.
//
// A chain may add values, which threads read directly, and store its result as values in front of
// its last step, in accesses of a thread's neighbouring columns; those of a row's four threads lie
// side by side.
//
// Constraints: for results of 8 bits, columns in multiples of 16, and at most one tensor operand.
#pragma once
#include "epilogue/codes.h"
#include "sm90/epilogue.h"
#include "sm90/params.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kPairedColumns = 16;

// The column of the result that column `product` of the product is, where results are codes.
CUTLASS_HOST_DEVICE constexpr int ColumnOfCodes(int product) {
  return product / 16 * 16 + product % 8 / 2 * 4 + product % 16 / 8 * 2 + product % 2;
}

// A step that reads codes, as kernels compute it that subtract zero points as they read.
template <class Step>
using Centred = std::conditional_t<
    std::is_base_of_v<epilogue::AddCodes, Step>, epilogue::AddCentred,
    std::conditional_t<std::is_base_of_v<epilogue::MulCodes, Step>, epilogue::MulCentred, Step>>;

// A step as kernels of codes compute it (epilogue/codes.h); Narrow: behind it are results of 8
// bits. These have GELU in few instructions; other kernels keep erff until they have run without it
// on a GPU.
template <class Step, bool Narrow>
struct StepOfCodes {
  using Type = std::conditional_t<Narrow, Centred<Step>, Step>;
};
template <bool Narrow>
struct StepOfCodes<epilogue::Dequantize, Narrow> {
  using Type = epilogue::DequantizeColumns;
};
template <>
struct StepOfCodes<epilogue::GeluErf, true> {
  using Type = epilogue::GeluErfOfCodes;
};

template <class Output, class Whole>
struct ChainOfCodes;
template <class Output, class... Steps>
struct ChainOfCodes<Output, epilogue::Chain<Steps...>> {
  using Type = epilogue::Chain<typename StepOfCodes<Steps, sizeof(Output) == 1>::Type...>;
};

// A matrix's rows, with the offsets that a sum of each row and column gets.
template <class K>
struct CodesOutput : MatrixOutput {
  const CodeParams& params;

  CUTLASS_DEVICE CodesOutput(const CodeParams& params, const MatrixOutput& to)
      : MatrixOutput(to), params(params) {}

  // Offsets of `Count` columns of a row, from `tile_column` on. Columns are multiples of `Count`.
  template <int Count>
  CUTLASS_DEVICE cutlass::AlignedArray<int, Count> offsets(int tile_row, int tile_column) const {
    cutlass::AlignedArray<int, Count> values;
    values.fill(0);
    const int at = column + tile_column;
    if constexpr (K::kOffsets) {
      const int64_t first = int64_t(class_of(row + tile_row)) * params.columns + at;
      if (at < params.columns)
        values =
            *reinterpret_cast<const cutlass::AlignedArray<int, Count>*>(params.offsets + first);
    }
    return values;
  }

 private:
  CUTLASS_DEVICE int class_of(int pixel) const {
    if constexpr (!K::kBorder) return 0;
    params.image.pixels.split(pixel);
    const int h = params.image.row.split(pixel);
    return params.border_h.class_of(h) * params.classes_w + params.border_w.class_of(pixel);
  }
};

// Has the interface of Epilogue.
template <class Shape>
class CodesEpilogue : public Epilogue<Shape> {
 public:
  using Base = Epilogue<Shape>;
  using typename Base::Chain;
  using typename Base::Element;
  using typename Base::Output;

  CUTLASS_DEVICE CodesEpilogue(const EpilogueMemory<Shape>& memory,
                               const EpilogueArguments& operands, int barrier)
      : Base(memory, operands, barrier), packer_(Chain::packer(operands.params)) {
    if constexpr (kPairs && Shape::kResidual) zero_ = operands.params[Chain::kTensorParam + 1];
  }

  // Has scales of the weights multiplied by that of x, which chains begin with.
  CUTLASS_DEVICE void keep_vectors() {
    if (this->fetched_) {
#pragma unroll
      for (int i = 0; i < Base::kFetches; ++i)
        if (i * 128 + this->thread_ < Shape::kColumns)
          this->fetches_[i] *= this->operands_.params[0];
    }
    Base::keep_vectors();
  }

  template <class Sum, int Size, class Destination>
  CUTLASS_DEVICE void finish_unit(const Sum (&sums)[Size], int unit_row, int unit_column,
                                  int column_end, const Destination& to) {
    char* buffer = this->memory_.staging + this->cursor_.stage * Shape::kUnitBytes;
    this->acquire_buffer();
    finish_from<0>(sums, buffer, unit_row, unit_column, column_end, to);
    this->release_buffer(buffer, unit_row, unit_column, to);
  }

 private:
  static constexpr bool kPairs = sizeof(Output) == 1;  // four columns of a thread are neighbours
  static constexpr int kNeighbours = kPairs ? 4 : 2;
  static_assert(!Chain::kGated && !Chain::kRotated, "codes have no gates and rotations yet");
  static_assert(!kPairs || (Shape::kUnitColumns % kPairedColumns == 0 &&
                            Chain::kTensors == Shape::kResidual + Chain::kReadsValues),
                "codes are stored 16 columns at a time, and tensors of codes come by TMA");
  static_assert(!Chain::kStores || kPairs, "values are stored beside codes alone");

  // Value i of a thread: its row (0, or 1 for the one 8 below), and its place among the neighbours.
  static constexpr int row_of(int i) { return i / 2 % 2; }
  static constexpr int place_of(int i) { return i % 2 + (kPairs ? i / 4 % 2 * 2 : 0); }

  // The first of this thread's neighbouring columns that has value i, within a part.
  CUTLASS_DEVICE int column_of(int i) const {
    return (kPairs ? i / 8 * 16 : i / 4 * 8) + this->thread_ % 4 * kNeighbours;
  }

  // Processes the unit's columns from `Column` on, up to 64 at a time.
  template <int Column, class Sum, int Size, class Destination>
  CUTLASS_DEVICE void finish_from(const Sum (&sums)[Size], char* buffer, int unit_row,
                                  int unit_column, int column_end, const Destination& to) {
    constexpr int kLeft = Shape::kUnitColumns - Column, kColumns = Base::PartOf(kLeft),
                  kCount = kColumns / 2;
    const int tile_column = unit_column + Column;
    cutlass::Array<float, kCount> x;
    if constexpr (std::is_same_v<Sum, float>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = sums[Column / 2 + i];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2 * kNeighbours) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const auto offsets = to.template offsets<kNeighbours>(
              unit_row + this->first_row() + 8 * row, tile_column + column_of(i));
#pragma unroll
          for (int j = i; j < i + 2 * kNeighbours; ++j)
            if (row_of(j) == row) x[j] = float(sums[Column / 2 + j] + offsets[place_of(j)]);
        }
      }
    }
    typename Chain::template Operands<kCount> operands;
    if constexpr (kPairs)
      read_neighbours<kCount>(operands, tile_column);
    else
      this->template read_vectors<kCount>(operands, tile_column);
    if constexpr (Chain::kReadsValues)
      read_values(operands.tensors[0], unit_row, tile_column, column_end, to);
    else if constexpr (kPairs && Shape::kResidual)
      read_codes<kColumns>(operands.tensors[0], buffer, Column);
    else if constexpr (!kPairs && Chain::kTensors > 0)
      this->template read_tensors<kCount>(operands, unit_row, tile_column, column_end, to);
    const float* params = this->operands_.params;
    if constexpr (kPairs) {
      const auto y = Chain::apply_but_last(x, operands, params);
      if constexpr (Chain::kStores) write_values(y, unit_row, tile_column, column_end, to);
      write_codes<kColumns>(buffer, Column, Chain::pack(y, packer_));
    } else {
      this->template write_staged<kColumns>(buffer, Column,
                                            Chain::template finish<Output>(x, operands, params));
    }
    if constexpr (kLeft > kColumns)
      finish_from<Column + kColumns>(sums, buffer, unit_row, unit_column, column_end, to);
  }

  template <int Count>
  CUTLASS_DEVICE void read_neighbours(typename Chain::template Operands<Count>& operands,
                                      int column) const {
#pragma unroll
    for (int v = 0; v < Chain::kVectors; ++v) {
      const float* vector = this->memory_.vectors + v * Shape::kColumns + column;
#pragma unroll
      for (int i = 0; i < Count; i += 8) {
        const float4 four = *reinterpret_cast<const float4*>(vector + column_of(i));
#pragma unroll
        for (int row = 0; row < 4; row += 2) {
          operands.vectors[v][i + row] = four.x, operands.vectors[v][i + row + 1] = four.y;
          operands.vectors[v][i + row + 4] = four.z, operands.vectors[v][i + row + 5] = four.w;
        }
      }
    }
  }

  using Value =
      std::conditional_t<std::is_void_v<typename Chain::Value>, Element, typename Chain::Value>;
  using Neighbours = cutlass::AlignedArray<Value, kNeighbours>;

  // Calls visit(element of a matrix without gaps, the thread's first value) for each access of
  // neighbouring columns that lies inside of the matrix. The others are `of_row` of it apart.
  template <int Count, class Destination, class Visit>
  CUTLASS_DEVICE void for_neighbours(int unit_row, int column, int column_end,
                                     const Destination& to, int64_t pitch,
                                     const Visit& visit) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int64_t pixel = to.pixel(unit_row + this->first_row() + 8 * row);
#pragma unroll
      for (int i = 0; i < Count; i += 2 * kNeighbours) {
        const int at = to.column + column + column_of(i);
        if (pixel >= 0 && at < column_end) visit(pixel * pitch + at, i + 2 * row);
      }
    }
  }

  // The neighbour j of the first one, among a thread's values.
  static constexpr int neighbour(int j) { return j % 2 + j / 2 * 4; }

  template <int Count, class Destination>
  CUTLASS_DEVICE void read_values(cutlass::Array<float, Count>& values, int unit_row, int column,
                                  int column_end, const Destination& to) const {
    values.fill(0.f);
    const auto* source = static_cast<const Value*>(this->operands_.tensors[0]);
    for_neighbours<Count>(unit_row, column, column_end, to, this->operands_.tensor_pitch[0],
                          [&](int64_t at, int first) {
                            const auto read = *reinterpret_cast<const Neighbours*>(source + at);
#pragma unroll
                            for (int j = 0; j < kNeighbours; ++j)
                              values[first + neighbour(j)] = float(read[j]);
                          });
  }

  template <int Count, class Destination>
  CUTLASS_DEVICE void write_values(const cutlass::Array<float, Count>& values, int unit_row,
                                   int column, int column_end, const Destination& to) const {
    auto* target = static_cast<Value*>(to.params.values);
    for_neighbours<Count>(unit_row, column, column_end, to, to.params.columns,
                          [&](int64_t at, int first) {
                            Neighbours written;
#pragma unroll
                            for (int j = 0; j < kNeighbours; ++j)
                              written[j] = Value(values[first + neighbour(j)]);
                            *reinterpret_cast<Neighbours*>(target + at) = written;
                          });
  }

  // The address that this lane gives to stmatrix and ldmatrix for 8 rows of 16 bytes: two above
  // each other, then, where there are four, those to their right.
  CUTLASS_DEVICE uint32_t codes_row(char* buffer, int column) const {
    const int row = this->thread_ / 32 * 16 + this->thread_ % 16;
    return SharedAddress(buffer) + Base::chunk_offset(row, column + this->thread_ % 32 / 16 * 16);
  }

  // Codes of a residual, 4 neighbouring columns of this thread in each word.
  template <int Columns>
  CUTLASS_DEVICE void read_codes(cutlass::Array<float, Columns / 2>& values, char* buffer,
                                 int column) const {
    uint32_t words[Columns / 8];
#pragma unroll
    for (int i = 0; i + 32 <= Columns; i += 32) {
      uint32_t* w = words + i / 8;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(codes_row(buffer, column + i)));
    }
    if constexpr (Columns == 16)
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(codes_row(buffer, column)));
#pragma unroll
    for (int i = 0; i < Columns / 2; ++i) {
      const epilogue::CodesOfWord<Element> codes(words[i / 8 * 2 + row_of(i)], zero_);
      values[i] = codes[place_of(i)];
    }
  }

  // There is no memory clobber: the fence and the warp's barrier behind the unit order these
  // stores.
  template <int Columns>
  CUTLASS_DEVICE void write_codes(char* buffer, int column,
                                  const cutlass::Array<uint32_t, Columns / 8>& words) const {
#pragma unroll
    for (int i = 0; i + 32 <= Columns; i += 32) {
      const int w = i / 8;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       codes_row(buffer, column + i)),
                   "r"(words[w]), "r"(words[w + 1]), "r"(words[w + 2]), "r"(words[w + 3]));
    }
    if constexpr (Columns == 16)
      asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(
                       codes_row(buffer, column)),
                   "r"(words[0]), "r"(words[1]));
  }

  typename Chain::Packer packer_;
  float zero_ = 0.f;  // the zero point of a residual
};

}  // namespace sm90
}  // namespace onnxbolt
