// The epilogue of a tile, by one consumer warpgroup: columns are output channels, rows are pixels.
//
// How it works: a tile is finished in units of 64 rows and one box of columns. For each unit the
// threads apply the epilogue's steps to their accumulators, write the result into a staging buffer
// in shared memory (stmatrix, swizzled as TMA expects), and store it by TMA. A residual comes by
// TMA into the same buffer beforehand, and the output takes its place. Each warp stores the 16 rows
// that it has of a unit, so that no warp waits for another.
//
// Constraints: a warpgroup has multiples of 64 rows, columns are multiples of 8, and rows in device
// memory are multiples of 16 bytes.
#pragma once
#include <cstring>

#include "cutlass/numeric_conversion.h"
#include "epilogue/chain.h"
#include "epilogue/rotation.h"
#include "sm90/tensor_map.h"
#include "sm90/tma.h"
#include "sm90/wgmma.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kStoredRows = 16, kWarps = 4;  // rows of one store; warps of a warpgroup

// The place where a tile is stored: rows of a tensor map of [rows, columns] from `row` and `column`
// on.
struct MatrixOutput {
  const CUtensorMap& map;
  int row, column, rows;

  CUTLASS_DEVICE void store(const void* staged, int tile_row, int tile_column) const {
    Store2D(map, staged, column + tile_column, row + tile_row);
  }

  // The pixel of a row of the tile, or a negative number for none: for operands that threads read
  // directly.
  CUTLASS_DEVICE int64_t pixel(int tile_row) const {
    return row + tile_row < rows ? row + tile_row : -1;
  }
};

// Constants of an epilogue. `Blocks`: the number of 64-row blocks. If the first tensor operand has
// the output's width, TMA brings it into the staging buffers, where the output takes its place;
// other tensors, and all if nothing loads them (LoadsResidual is false), are read directly.
template <class ElementType, class OutputType, class ChainType, int Blocks, int ColumnCount,
          bool LoadsResidual = true>
struct EpilogueShape {
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;
  static constexpr int kBlocks = Blocks, kColumns = ColumnCount;
  static constexpr bool kResidual = LoadsResidual && Chain::kTensors > 0 && !Chain::kReadsValues &&
                                    sizeof(Element) == sizeof(Output);
  static constexpr int kUnitColumns = StoredColumns<Output>(kColumns, kResidual);
  static constexpr int kRowBytes = kUnitColumns * sizeof(Output), kUnitBytes = 64 * kRowBytes;
  static constexpr int kUnitsAcross = kColumns / kUnitColumns, kUnits = kBlocks * kUnitsAcross;
  static constexpr int kBuffers =
      kResidual && kUnits > 1 ? 4 : 2;   // residuals are loaded this many units ahead
  static constexpr bool kStores = true;  // false: the result is only the operand of a further
                                         // product, and the buffers are the residual's
  static constexpr int kStagingBytes = kBuffers * kUnitBytes;
  static constexpr int kVectorBytes = Chain::kVectors * kColumns * static_cast<int>(sizeof(float));
  static_assert(kColumns % 8 == 0, "TMA stores rows of 16 bytes");
};

// Shared memory of one warpgroup's epilogue.
template <class Shape>
struct EpilogueMemory {
  char* staging;             // kBuffers units, aligned to 1024 bytes
  float* vectors;            // [Chain::kVectors][kColumns]
  Barrier* residual_loaded;  // kBuffers each, where kResidual
  Barrier* residual_free;    // one arrival of each warp
};

// The epilogue of one warpgroup. All 128 threads make every call.
template <class Shape>
class Epilogue {
 public:
  using Element = typename Shape::Element;
  using Output = typename Shape::Output;
  using Chain = typename Shape::Chain;

  // `barrier`: a hardware barrier of this warpgroup's own.
  CUTLASS_DEVICE Epilogue(const EpilogueMemory<Shape>& memory, const EpilogueArguments& operands,
                          int barrier)
      : memory_(memory),
        operands_(operands),
        barrier_(barrier),
        thread_(threadIdx.x % 128),
        warp_(__shfl_sync(~0u, thread_ / 32, 0)),
        lane_row_(chunk_offset(thread_ / 32 * 16 + thread_ % 16, thread_ % 32 / 16 * 8)),
        lane_pair_(chunk_offset(first_row(), thread_ % 4 * 2) + thread_ % 2 * 8) {}

  // Begins to fetch the vectors of columns `first` to `end`; they arrive under the main loop.
  // Nothing is fetched if the tile before had the same columns.
  CUTLASS_DEVICE void fetch_vectors(int first, int end) {
    if (Chain::kVectors == 0 || first == first_column_) return;
    first_column_ = first;
    fetched_ = true;
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      const int index = i * 128 + thread_, vector = index / Shape::kColumns,
                column = first + index % Shape::kColumns;
      if (vector < Chain::kVectors)
        fetches_[i] = column < end ? operands_.vectors[vector][column] : 0.f;
    }
  }

  // Makes the fetched vectors available, before the first unit. Warps meet first, since the last
  // tile's vectors are overwritten.
  CUTLASS_DEVICE void keep_vectors() {
    if (Chain::kVectors == 0 || !fetched_) return;
    fetched_ = false;
    SyncThreads(barrier_, 128);
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      const int index = i * 128 + thread_;
      if (index < Chain::kVectors * Shape::kColumns) memory_.vectors[index] = fetches_[i];
    }
    SyncThreads(barrier_, 128);
  }

  // Fetches and keeps at once, for a kernel without a main loop that could hide the latency.
  CUTLASS_DEVICE void load_vectors(int first, int end) {
    fetch_vectors(first, end);
    keep_vectors();
  }

  // Applies the steps to one unit of the tile and stores it. `values`: the unit's accumulators.
  // `column_end`: columns of the matrix. `operand`: if not null, it gets the result as the operand
  // of a further product, which has the layout of accumulators.
  template <int Size, class Destination>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int unit_row, int unit_column,
                                  int column_end, const Destination& to,
                                  uint32_t* operand = nullptr) {
    char* buffer = memory_.staging + cursor_.stage * Shape::kUnitBytes;
    acquire_buffer();
    for_each_part(values, buffer, unit_row, unit_column, column_end, to,
                  [=](const auto& x, const auto& operands, int column) {
                    const auto rounded =
                        Chain::template finish<Output>(x, operands, operands_.params);
                    if constexpr (Shape::kStores)
                      write_staged<2 * decltype(rounded)::kElements>(buffer, column, rounded);
                    if (operand) std::memcpy(operand + column / 4, &rounded, sizeof rounded);
                  });
    release_buffer(buffer, unit_row, unit_column, to);
  }

  // Waits for all stores, before the block ends: they read its shared memory.
  CUTLASS_DEVICE void drain() {
    if (thread_ % 32 == 0) WaitForStores<0>();
  }

 protected:
  // Stores the unit, or gives its buffer back if it is not stored.
  template <class Destination>
  CUTLASS_DEVICE void release_buffer(char* buffer, int unit_row, int unit_column,
                                     const Destination& to) {
    if constexpr (Shape::kStores) FenceAsyncProxy();
    __syncwarp();
    if (thread_ % 32 == 0) {
      if constexpr (Shape::kStores) {
        const int row = warp_ * kStoredRows;
        to.store(buffer + row * Shape::kRowBytes, unit_row + row, unit_column);
        CommitStores();
        if constexpr (Shape::kResidual) release_previous_buffer();
      } else {
        memory_.residual_free[cursor_.stage].arrive();
      }
    }
    cursor_.advance();
  }

  // With a residual, waits until the buffer holds it; else until the buffer's last store has read
  // it.
  CUTLASS_DEVICE void acquire_buffer() {
    if constexpr (Shape::kResidual) {
      memory_.residual_loaded[cursor_.stage].wait(cursor_.parity);
    } else {
      if (thread_ % 32 == 0) WaitForStores<Shape::kBuffers - 1>();
      __syncwarp();
    }
  }

  CUTLASS_DEVICE void release_previous_buffer() {
    WaitForStores<1>();
    if (units_++ > 0)
      memory_.residual_free[(cursor_.stage + Shape::kBuffers - 1) % Shape::kBuffers].arrive();
  }

  // Columns that are processed together, of `left` columns. A rotation needs registers for cos and
  // sin besides.
  static constexpr int PartOf(int left) {
    return left >= 64 && !Chain::kRotated ? 64 : left >= 32 ? 32 : left >= 16 ? 16 : 8;
  }

  // Processes the unit's columns from `Column` on, up to 64 at a time: independent values hide the
  // latency of the steps. `use` gets the accumulators (four values of a thread for each block of 8
  // columns, see Accumulators), the epilogue's operands for them, and the first column.
  template <int Column = 0, class Destination, class Use>
  CUTLASS_DEVICE void for_each_part(const float* values, char* buffer, int unit_row,
                                    int unit_column, int column_end, const Destination& to,
                                    const Use& use) {
    constexpr int kLeft = Shape::kUnitColumns - Column, kColumns = PartOf(kLeft);
    constexpr int kCount = kColumns / 2;
    cutlass::Array<float, kCount> x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = values[value_of(Column, i)];
    const int tile_column = unit_column + Column;
    auto operands = operands_of<kCount>(values, Column, unit_row, tile_column, to);
    read_vectors<kCount>(operands, tile_column);
    if constexpr (Shape::kResidual) operands.tensors[0] = read_staged<kColumns>(buffer, Column);
    if constexpr (Chain::kTensors > Shape::kResidual)
      read_tensors<kCount>(operands, unit_row, tile_column, column_end, to);
    use(x, operands, Column);
    if constexpr (kLeft > kColumns)
      for_each_part<Column + kColumns>(values, buffer, unit_row, unit_column, column_end, to, use);
  }

  // The accumulator of value i of the columns from `column` on. With a gate, every other 8 columns
  // of the product are its other half.
  CUTLASS_DEVICE static constexpr int value_of(int column, int i) {
    return Chain::kFold * (column / 2 + i / 4 * 4) + i % 4;
  }

  // Operands without vectors and tensors, for the columns from `column` of a unit on, which are
  // those from `tile_column` of the tile on.
  template <int Count, class Destination>
  CUTLASS_DEVICE auto operands_of(const float* values, int column, int unit_row, int tile_column,
                                  const Destination& to) const {
    if constexpr (Chain::kRotated) {
      return typename Chain::template Operands<Count>(
          read_rotation<Count>(unit_row, to.column + tile_column, to));
    } else if constexpr (Chain::kGated) {
      cutlass::Array<float, Count> half;
#pragma unroll
      for (int i = 0; i < Count; ++i) half[i] = values[value_of(column, i) + 4];
      return typename Chain::template Operands<Count>(half);
    } else {
      return typename Chain::template Operands<Count>();
    }
  }

  template <int Count>
  CUTLASS_DEVICE void read_vectors(typename Chain::template Operands<Count>& operands,
                                   int column) const {
#pragma unroll
    for (int v = 0; v < Chain::kVectors; ++v) {
      const float* vector = memory_.vectors + v * Shape::kColumns + column + 2 * (thread_ % 4);
#pragma unroll
      for (int i = 0; i < Count; i += 4) {
        const float2 pair = *reinterpret_cast<const float2*>(vector + 2 * i);
        operands.vectors[v][i] = operands.vectors[v][i + 2] = pair.x;
        operands.vectors[v][i + 1] = operands.vectors[v][i + 3] = pair.y;
      }
    }
  }

  // Reads tensors that do not come by TMA. The matrix has an even number of columns, so that both
  // values of a pair are inside or outside of it.
  template <int Count, class Destination>
  CUTLASS_DEVICE void read_tensors(typename Chain::template Operands<Count>& operands, int unit_row,
                                   int column, int column_end, const Destination& to) const {
#pragma unroll
    for (int t = Shape::kResidual; t < Chain::kTensors; ++t) {
#pragma unroll
      for (int i = 0; i < Count; i += 2) {
        const int64_t pixel = to.pixel(unit_row + first_row() + i % 4 * 4);
        const int at = to.column + column + i / 4 * 8 + thread_ % 4 * 2;
        const bool valid = at < column_end && pixel >= 0;
        const Element* source = static_cast<const Element*>(operands_.tensors[t]) +
                                pixel * operands_.tensor_pitch[t] + at;
        operands.tensors[t][i] = valid ? float(source[0]) : 0.f;
        operands.tensors[t][i + 1] = valid ? float(source[1]) : 0.f;
      }
    }
  }

  // Reads cos and sin of the thread's pairs in the columns from `column` on, a multiple of 8. The
  // table is as wide as a multiple of 8, so that only the first place takes a division.
  template <int Count, class Destination>
  CUTLASS_DEVICE cutlass::Array<float, Count> read_rotation(int unit_row, int column,
                                                            const Destination& to) const {
    const RotationArguments& rotation = operands_.rotation;
    auto turns = epilogue::unrotated<Count>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = to.pixel(unit_row + first_row() + half * 8);
      if (row < 0 || column >= rotation.columns) continue;
      const epilogue::RotationRow<Element> table(rotation, static_cast<int>(row));
      int place = column % rotation.width;
#pragma unroll
      for (int i = 2 * half; i < Count; i += 4) {
        if (column + i / 4 * 8 < rotation.columns) {
          const auto pair = table.template read<2>(place + thread_ % 4 * 2);
          turns[i] = pair[0], turns[i + 1] = pair[1];
        }
        place += 8;
        if (place == rotation.width) place = 0;
      }
    }
    return turns;
  }

  CUTLASS_DEVICE int first_row() const { return thread_ / 32 * 16 + thread_ % 32 / 4; }

  // The offset in a buffer of the 16 bytes at column `column` of row `row`, swizzled as TMA does.
  CUTLASS_DEVICE static int chunk_offset(int row, int column) {
    const int index = column * static_cast<int>(sizeof(Output)) / 16;
    int swizzled = index;
    if constexpr (kChunks == 8) swizzled ^= row % 8;
    if constexpr (kChunks == 4) swizzled ^= row / 2 % 4;
    if constexpr (kChunks == 2) swizzled ^= row / 4 % 2;
    return row * Shape::kRowBytes + swizzled * 16;
  }

  // The address that this lane gives to stmatrix and ldmatrix for 8x8 matrices: the two upper ones
  // come before those to their right. `column` is a multiple of 16, for which the swizzle is an
  // exclusive or, or is the last 8 columns.
  template <bool Wide>
  CUTLASS_DEVICE uint32_t matrix_row(char* buffer, int column) const {
    const uint32_t start = SharedAddress(buffer);
    if constexpr (!Wide) return start + chunk_offset(thread_ / 32 * 16 + thread_ % 16, column);
    const int bytes = column * static_cast<int>(sizeof(Output));
    return kSwizzled ? (start + lane_row_) ^ bytes : start + lane_row_ + bytes;
  }

  template <int Columns>
  CUTLASS_DEVICE cutlass::Array<float, Columns / 2> read_staged(char* buffer, int column) const {
    cutlass::Array<Element, Columns / 2> packed;
    if constexpr (sizeof(Element) == 2) {
      uint32_t* words = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
      for (int i = 0; i + 16 <= Columns; i += 16) {
        uint32_t* w = words + i / 4;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(matrix_row<true>(buffer, column + i)));
      }
      if constexpr (Columns == 8)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(words[0]), "=r"(words[1])
                     : "r"(matrix_row<false>(buffer, column)));
    } else {
#pragma unroll
      for (int i = 0; i < Columns / 2; i += 2)
        reinterpret_cast<float2&>(packed[i]) = *pair(buffer, column, i);
    }
    return cutlass::NumericArrayConverter<float, Element, Columns / 2>{}(packed);
  }

  // There is no memory clobber: the fence and the warp's barrier behind the unit order these
  // stores, and the compiler may interleave the arithmetic of neighbouring columns.
  template <int Columns>
  CUTLASS_DEVICE void write_staged(char* buffer, int column,
                                   const cutlass::Array<Output, Columns / 2>& values) const {
    if constexpr (sizeof(Output) == 2) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(&values);
#pragma unroll
      for (int i = 0; i + 16 <= Columns; i += 16) {
        const uint32_t* w = words + i / 4;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         matrix_row<true>(buffer, column + i)),
                     "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
      }
      if constexpr (Columns == 8)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(
                         matrix_row<false>(buffer, column)),
                     "r"(words[0]), "r"(words[1]));
    } else {
#pragma unroll
      for (int i = 0; i < Columns / 2; i += 2)
        *pair(buffer, column, i) = make_float2(values[i], values[i + 1]);
    }
  }

  // Stores this thread's values i and i + 1, of 4 bytes each. For blocks of 8 columns the swizzle
  // is an exclusive or, and it is the same 8 rows below.
  CUTLASS_DEVICE float2* pair(char* buffer, int column, int i) const {
    const int bytes = (column + i / 4 * 8) * static_cast<int>(sizeof(float)),
              row_offset = i % 4 * 4 * Shape::kRowBytes;
    return reinterpret_cast<float2*>(
        buffer + (kSwizzled ? lane_pair_ ^ bytes : lane_pair_ + bytes) + row_offset);
  }

  static constexpr int kChunks = Shape::kRowBytes / 16;
  static constexpr bool kSwizzled = kChunks == 8 || kChunks == 4 || kChunks == 2;
  static constexpr int kFetches = (Chain::kVectors * Shape::kColumns + 127) / 128;

  EpilogueMemory<Shape> memory_;
  const EpilogueArguments& operands_;
  float fetches_[kFetches > 0 ? kFetches : 1];
  bool fetched_ = false;
  int barrier_, thread_, warp_, lane_row_, lane_pair_;
  int first_column_ = -1, units_ = 0;
  RingCursor<Shape::kBuffers> cursor_;
};

}  // namespace sm90
}  // namespace onnxbolt
