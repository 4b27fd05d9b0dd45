// A thread's part of a depthwise convolution: `Width` neighbouring channels of a small tile of
// output pixels.
#pragma once
#include <type_traits>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "epilogue/chain.h"
#include "epilogue/codes.h"
#include "ops/conv/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {
namespace depthwise {

// The shape of the work as a configuration fixes it. A filter of 0 x 0 is one whose extents, stride
// and dilation are known at launch alone.
template <class Row>
struct Shape {
  static constexpr int kRows = Row::at(kTileM),
                       kColumns =
                           Row::at(kTileN);  // rows and columns of a thread's tile of output pixels
  static constexpr int kThreads = Row::at(kTileK);  // threads of a block, at most
  static constexpr int kR = Row::at(kWarpM), kS = Row::at(kWarpN), kStride = Row::at(kWarpK);
  static constexpr int kWidth = Row::at(kAlignA);
  static constexpr bool kFixed = kR > 0;
  static constexpr int kWindowRows = (kRows - 1) * kStride + kR,
                       kWindowColumns = (kColumns - 1) * kStride + kS;

  // Few enough weights stay in registers; else each use reads them from shared memory.
  static constexpr bool kFilterInRegisters = kFixed && kR * kS * kWidth <= 72;

  static_assert(kFixed || kRows == 1,
                "a tile of a filter that is known at launch is one row of pixels");
};

template <int Width>
using Values = cutlass::Array<float, Width>;

// Neighbouring values in accesses of at most 16 bytes.
template <class T, int N>
using Access = cutlass::AlignedArray<T, N, (N * sizeof(T) < 16 ? N * sizeof(T) : 16)>;

// The type of the weights of an element: those of codes of integers are signed.
template <class Element>
using WeightOf = std::conditional_t<std::is_same_v<Element, uint8_t>, int8_t, Element>;

struct Params : ConvArguments {
  float zero = 0.f;                             // the zero point of x, where x are codes
  cutlass::FastDivmod tile_columns, tile_rows;  // tiles of an image
  cutlass::FastDivmod chunks;                   // parts of the channels, one to a block
  int tiles;                                    // tiles of all images

  Params(const ConvArguments& conv, int rows, int columns, int channels_of_block)
      : ConvArguments(conv),
        tile_columns((conv.q + columns - 1) / columns),
        tile_rows((conv.p + rows - 1) / rows),
        chunks((conv.c + channels_of_block - 1) / channels_of_block),
        tiles(conv.n * tile_columns.divisor * tile_rows.divisor) {}
};

// A block is lanes x tiles: threadIdx.x counts vectors of channels, so that a warp reads whole
// sectors, threadIdx.y tiles.
template <class Shape>
struct Place {
  int first_channel;       // the block's first channel
  int channel;             // the thread's first channel
  int image, row, column;  // the tile's first output pixel
  bool inside;

  __device__ explicit Place(const Params& conv) {
    int block, chunk, tile_row, tile_column, tile;
    conv.chunks(block, chunk, blockIdx.x);
    first_channel = chunk * blockDim.x * Shape::kWidth;
    channel = first_channel + threadIdx.x * Shape::kWidth;
    tile = block * blockDim.y + threadIdx.y;
    inside = tile < conv.tiles && channel < conv.c;
    conv.tile_columns(tile_row, tile_column, tile);
    conv.tile_rows(image, tile_row, tile_row);
    row = tile_row * Shape::kRows;
    column = tile_column * Shape::kColumns;
  }
};

// The weights of a block's channels as fp32 in shared memory: for each tap all lanes side by side,
// in parts of at most 16 bytes, so that lanes do not meet in a bank.
template <int Width>
struct SharedFilter {
  static constexpr int kPart = Width < 4 ? Width : 4, kParts = Width / kPart;
  float* values;

  // By the whole block, from [K, taps] as the node has them: a thread takes channels, whose taps
  // are neighbours. `Taps`: their number where it is known, else 0.
  template <class Element, int Taps>
  __device__ void fill(const ConvArguments& conv, int first_channel) const {
    constexpr int kUnrolled = Taps > 0 ? Taps : 4;
    const int taps = Taps > 0 ? Taps : conv.r * conv.s;
    const int channels = min(int(blockDim.x) * Width, conv.c - first_channel),
              plane = blockDim.x * kPart;
    auto filter = static_cast<const Element*>(conv.filter) + int64_t(first_channel) * taps;
    for (int channel = threadIdx.y * blockDim.x + threadIdx.x; channel < channels;
         channel += blockDim.x * blockDim.y) {
      const int lane = channel / Width, part = channel % Width / kPart;
      float* to = values + part * plane + lane * kPart + channel % kPart;
#pragma unroll kUnrolled
      for (int tap = 0; tap < taps; ++tap)
        to[tap * kParts * plane] = float(filter[channel * taps + tap]);
    }
  }

  __device__ Values<Width> at(int tap) const {
    Values<Width> result;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      auto access = reinterpret_cast<const Access<float, kPart>*>(
          values)[(tap * kParts + part) * blockDim.x + threadIdx.x];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kPart; ++i) result[part * kPart + i] = access[i];
    }
    return result;
  }
};

// The weights of a thread's channels, wherever they are kept.
template <class Shape, bool InRegisters = Shape::kFilterInRegisters>
struct Filter {
  SharedFilter<Shape::kWidth> shared;
  __device__ explicit Filter(const SharedFilter<Shape::kWidth>& shared) : shared(shared) {}
  __device__ Values<Shape::kWidth> at(int tap) const { return shared.at(tap); }
};

template <class Shape>
struct Filter<Shape, true> {
  Values<Shape::kWidth> taps[Shape::kR * Shape::kS];

  __device__ explicit Filter(const SharedFilter<Shape::kWidth>& shared) {
    CUTLASS_PRAGMA_UNROLL
    for (int tap = 0; tap < Shape::kR * Shape::kS; ++tap) taps[tap] = shared.at(tap);
  }
  __device__ const Values<Shape::kWidth>& at(int tap) const { return taps[tap]; }
};

// Applies the chain to a tile's accumulators and writes them. The vectors are loaded on
// construction.
template <class Element, class Output, class Chain, class Shape>
struct Epilogue {
  static constexpr int kWidth = Shape::kWidth;
  using Sums = Values<kWidth>[Shape::kColumns];
  typename Chain::template Operands<kWidth> operands;
  typename Chain::Packer packer;

  __device__ Epilogue(const ConvArguments& conv, int channel)
      : packer(Chain::packer(conv.epilogue.params)) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Chain::kVectors; ++i)
      operands.vectors[i] =
          *reinterpret_cast<const Access<float, kWidth>*>(conv.epilogue.vectors[i] + channel);
  }

  // One row of the tile.
  __device__ void store(const ConvArguments& conv, const Place<Shape>& place, int row,
                        const Sums& sums) {
    const int p = place.row + row;
    if (p >= conv.p) return;
    const int64_t pixel = (int64_t(place.image) * conv.p + p) * conv.q + place.column;
    Output* y = static_cast<Output*>(conv.y) + pixel * conv.y_pitch + place.channel;
    CUTLASS_PRAGMA_UNROLL
    for (int q = 0; q < Shape::kColumns; ++q, y += conv.y_pitch) {
      if (place.column + q >= conv.q) return;
      load_tensors(conv, pixel + q, place.channel);
      Access<Output, kWidth> result;
      static_cast<cutlass::Array<Output, kWidth>&>(result) =
          Chain::template finish_packed<Output>(sums[q], operands, conv.epilogue.params, packer);
      *reinterpret_cast<Access<Output, kWidth>*>(y) = result;
    }
  }

 private:
  __device__ void load_tensors(const ConvArguments& conv, int64_t pixel, int channel) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Chain::kTensors; ++i) {
      auto tensor = static_cast<const Element*>(conv.epilogue.tensors[i]) +
                    pixel * conv.epilogue.tensor_pitch[i] + channel;
      operands.tensors[i] = epilogue::widened<Element, kWidth>(
          *reinterpret_cast<const Access<Element, kWidth>*>(tensor), 0.f);
    }
  }
};

}  // namespace depthwise
}  // namespace onnxbolt
