// Layout conversion for every architecture: NCHW to NHWC and back, with channels of padding added
// or dropped and the element type converted on the way.
//
// A block moves a tile of channels x pixels of one image through shared memory, so that both sides
// are read and written in whole lines. Shared memory holds rows of pixels for each channel in the
// output's type; groups of eight pixels are permuted by the channel, so that neither a row of
// pixels nor a row of channels meets one bank twice.
//
// Constraints: at least as many channels are stored as there are; the grid's limits on channels and
// images.
#pragma once
#include <algorithm>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "ops/layout/arguments.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace layout {

constexpr int kThreads = 256;
constexpr int kGroup = 8;  // pixels that stay neighbours in shared memory

// The tile's extents; few channels are met by long rows of pixels. Planes are accessed in at most
// `PixelBytes`.
template <int Channels, int Pixels, int PixelBytes>
struct Tile {
  static constexpr int kChannels = Channels, kPixels = Pixels;
  template <class Element>
  static constexpr int kPixelWidth =
      std::clamp<int>(static_cast<int>(PixelBytes / sizeof(Element)), 1, kGroup);
  template <class Element>
  static constexpr int kChannelWidth = std::min<int>(16 / sizeof(Element), Channels);
};

struct Params : LayoutArguments {
  cutlass::FastDivmod tiles;  // along the pixels of an image
  bool aligned;               // rows of channels can be accessed in vectors

  Params(const LayoutArguments& arguments, int tile_pixels)
      : LayoutArguments(arguments),
        tiles((arguments.pixels + tile_pixels - 1) / tile_pixels),
        aligned(false) {}
};

// The block's tile: its image, and the image's pixel and channel that it begins with.
struct Origin {
  int image, pixel, channel;

  template <class Tile>
  __device__ Origin(const Params& params, Tile) {
    params.tiles(image, pixel, blockIdx.x);
    pixel *= Tile::kPixels;
    channel = blockIdx.y * Tile::kChannels;
  }
};

template <class Element, class Tile>
struct NchwTile {
  alignas(32) Element values[Tile::kChannels * Tile::kPixels];

  __device__ Element& at(int channel, int pixel) {
    constexpr int kGroups = Tile::kPixels / kGroup;
    int group = (pixel / kGroup) ^ (channel / kGroup % kGroups);
    return values[channel * Tile::kPixels + group * kGroup + pixel % kGroup];
  }
};

// `count` elements of a vector, zeros behind them.
template <int Width, class Element>
__device__ cutlass::AlignedArray<Element, Width> load(const Element* from, int count,
                                                      bool aligned) {
  cutlass::AlignedArray<Element, Width> values;
  if (aligned && count >= Width)
    return *reinterpret_cast<const cutlass::AlignedArray<Element, Width>*>(from);
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Width; ++i) values[i] = i < count ? from[i] : Element(0.f);
  return values;
}

template <int Width, class Element>
__device__ void store(Element* to, const cutlass::AlignedArray<Element, Width>& values, int count,
                      bool aligned) {
  if (aligned && count >= Width) {
    *reinterpret_cast<cutlass::AlignedArray<Element, Width>*>(to) = values;
    return;
  }
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Width; ++i) {
    if (i < count) to[i] = values[i];
  }
}

// x [n, channels, pixels] to y [n, pixels, stored]. static: see families/pool/kernel.h.
template <class Element, class Output, class Tile>
static __global__ void __launch_bounds__(kThreads)
    to_channels_last(const __grid_constant__ Params params) {
  constexpr int kRead = Tile::template kPixelWidth<Element>,
                kWrite = Tile::template kChannelWidth<Output>;
  constexpr int kRowReads = Tile::kPixels / kRead, kRowWrites = Tile::kChannels / kWrite;
  __shared__ NchwTile<Output, Tile> nchw_tile;
  LaunchDependents();
  WaitForPredecessors();
  const Origin origin(params, Tile{});
  auto x = static_cast<const Element*>(params.x) +
           int64_t(origin.image) * params.channels * params.pixels;
  auto y = static_cast<Output*>(params.y) + int64_t(origin.image) * params.stored * params.pixels;

  CUTLASS_PRAGMA_UNROLL
  for (int i = threadIdx.x; i < Tile::kChannels * kRowReads; i += kThreads) {
    int row = i / kRowReads, column = i % kRowReads * kRead;
    int channel = origin.channel + row, pixel = origin.pixel + column;
    int count = channel < params.channels ? params.pixels - pixel : 0;
    auto values = load<kRead>(x + int64_t(channel) * params.pixels + pixel, count, true);
    cutlass::AlignedArray<Output, kRead> converted;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kRead; ++j) converted[j] = Output(float(values[j]));
    *reinterpret_cast<cutlass::AlignedArray<Output, kRead>*>(&nchw_tile.at(row, column)) =
        converted;
  }
  __syncthreads();
  CUTLASS_PRAGMA_UNROLL
  for (int i = threadIdx.x; i < Tile::kPixels * kRowWrites; i += kThreads) {
    int row = i / kRowWrites, column = i % kRowWrites * kWrite;
    int pixel = origin.pixel + row, channel = origin.channel + column;
    cutlass::AlignedArray<Output, kWrite> values;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kWrite; ++j) values[j] = nchw_tile.at(column + j, row);
    if (pixel < params.pixels)
      store(y + int64_t(pixel) * params.stored + channel, values, params.stored - channel,
            params.aligned);
  }
}

// x [n, pixels, stored] to y [n, channels, pixels].
template <class Element, class Output, class Tile>
static __global__ void __launch_bounds__(kThreads)
    to_channels_first(const __grid_constant__ Params params) {
  constexpr int kRead = Tile::template kChannelWidth<Element>,
                kWrite = Tile::template kPixelWidth<Output>;
  constexpr int kRowReads = Tile::kChannels / kRead, kRowWrites = Tile::kPixels / kWrite;
  __shared__ NchwTile<Output, Tile> nchw_tile;
  LaunchDependents();
  WaitForPredecessors();
  const Origin origin(params, Tile{});
  auto x =
      static_cast<const Element*>(params.x) + int64_t(origin.image) * params.stored * params.pixels;
  auto y = static_cast<Output*>(params.y) + int64_t(origin.image) * params.channels * params.pixels;

  CUTLASS_PRAGMA_UNROLL
  for (int i = threadIdx.x; i < Tile::kPixels * kRowReads; i += kThreads) {
    int row = i / kRowReads, column = i % kRowReads * kRead;
    int pixel = origin.pixel + row, channel = origin.channel + column;
    int count = pixel < params.pixels ? params.stored - channel : 0;
    auto values = load<kRead>(x + int64_t(pixel) * params.stored + channel, count, params.aligned);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kRead; ++j) nchw_tile.at(column + j, row) = Output(float(values[j]));
  }
  __syncthreads();
  CUTLASS_PRAGMA_UNROLL
  for (int i = threadIdx.x; i < Tile::kChannels * kRowWrites; i += kThreads) {
    int row = i / kRowWrites, column = i % kRowWrites * kWrite;
    int channel = origin.channel + row, pixel = origin.pixel + column;
    auto values =
        *reinterpret_cast<const cutlass::AlignedArray<Output, kWrite>*>(&nchw_tile.at(row, column));
    if (channel < params.channels)
      store(y + int64_t(channel) * params.pixels + pixel, values, params.pixels - pixel, true);
  }
}

}  // namespace layout

// Both directions and every shape of a pair of element types: what fits is picked at launch.
template <class Config, class ElementType, class OutputType>
struct Layout {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Function = void (*)(layout::Params);
  static constexpr int kSharedMemory = 0;  // the dynamic part

  static const char* prepare() {
    for (const Variant& variant : kVariants) {
      for (const auto& direction : variant.functions) {
        for (Function function : direction) {
          if (const char* error = ReserveSharedMemory(function, 0)) return error;
        }
      }
    }
    return nullptr;
  }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const LayoutArguments*>(arguments);
    if (args.stored < args.channels) return "fewer channels are stored than there are";
    if (const char* error = CheckExtents(int64_t(args.n) * args.pixels, args.stored, 1))
      return error;
    return args.stored <= kMostChannelTiles * kVariants[kVariantCount - 1].channels
               ? nullptr
               : "too many channels for one launch";
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const LayoutArguments*>(arguments);
    if (args.n == 0 || args.pixels == 0 || args.stored == 0) return nullptr;
    const auto fits = [&](const Variant& candidate) { return args.stored <= candidate.channels; };
    const Variant& variant = *std::find_if(kVariants, kVariants + kVariantCount - 1, fits);
    layout::Params params(args, variant.pixels);
    params.aligned = args.to_last ? rows_are_aligned<Output>(args.y, args, variant)
                                  : rows_are_aligned<Element>(args.x, args, variant);
    const int access = args.to_last ? plane_access(args.x, args.pixels * sizeof(Element))
                                    : plane_access(args.y, args.pixels * sizeof(Output));
    dim3 grid(args.n * params.tiles.divisor,
              (args.stored + variant.channels - 1) / variant.channels);
    return LaunchDependent(variant.functions[args.to_last][access], grid, layout::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  static constexpr int kVariantCount = 5;
  static constexpr int kMostChannelTiles = 65535;  // CUDA's limit of gridDim.y

  struct Variant {
    int channels, pixels;      // extents of a tile
    Function functions[2][3];  // to channels first and last, with planes accessed in 16 bytes, in
                               // 8, by elements
  };

  template <int Channels, int Pixels>
  static constexpr Variant variant() {
    using By16 = layout::Tile<Channels, Pixels, 16>;
    using By8 = layout::Tile<Channels, Pixels, 8>;
    using ByOne = layout::Tile<Channels, Pixels, 1>;
    return {Channels,
            Pixels,
            {{layout::to_channels_first<Element, Output, By16>,
              layout::to_channels_first<Element, Output, By8>,
              layout::to_channels_first<Element, Output, ByOne>},
             {layout::to_channels_last<Element, Output, By16>,
              layout::to_channels_last<Element, Output, By8>,
              layout::to_channels_last<Element, Output, ByOne>}}};
  }

  static constexpr Variant kVariants[kVariantCount] = {variant<4, 1024>(), variant<8, 512>(),
                                                       variant<16, 256>(), variant<32, 128>(),
                                                       variant<64, 64>()};

  // The place in Variant::functions.
  static int plane_access(const void* nchw, size_t plane_bytes) {
    const auto fits = [&](size_t bytes) {
      return plane_bytes % bytes == 0 && IsAligned(nchw, bytes);
    };
    return fits(16) ? 0 : fits(8) ? 1 : 2;
  }

  template <class Value>
  static bool rows_are_aligned(const void* rows, const LayoutArguments& args,
                               const Variant& variant) {
    const int width = std::min<int>(16 / sizeof(Value), variant.channels);
    return args.stored % width == 0 && IsAligned(rows, width * sizeof(Value));
  }
};

}  // namespace onnxbolt
