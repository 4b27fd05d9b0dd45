// Depth to space and space to depth in NHWC with ONNX's semantics and an epilogue, for every
// architecture: accesses of up to 16 bytes.
//
// How it works: a row of a block's pixels in the larger image, and as many neighbouring channels of
// one pixel of the smaller image, hold the same values in the same order, a run. A thread moves a
// vector of a run. Where the pixels of a channel lie behind one another, there are no runs, and a
// thread gathers the elements of its vector one by one.
//
// Constraints: channels of the larger image, or runs where its pixels lie without gaps, pitches and
// operands are multiples of align_a.
#pragma once
#include <algorithm>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "epilogue/chain.h"
#include "ops/pixel_shuffle/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/integers.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace pixel_shuffle {

constexpr int kThreads = 256;

struct Params : PixelShuffleArguments {
  int run, square;              // elements of a run, pixels of a block
  cutlass::FastDivmod vectors;  // vectors of a line of pixels of y, or of one of its pixels
  cutlass::FastDivmod by_run, by_channels, by_w, by_block, by_square;
  int outputs;

  Params(const PixelShuffleArguments& shuffle, int width)
      : PixelShuffleArguments(shuffle),
        run(block * c),
        square(block * block),
        vectors((to_space ? w : block) * run / width),
        by_run(run),
        by_channels(c),
        by_w(w),
        by_block(block),
        by_square(square),
        outputs(n * h * w * (square * c / width)) {}
};

// An element of y, as its pixel and channel, and its place in x.
struct Place {
  int64_t pixel, x;
  int channel;
};

// Element `i` of a line of pixels of y, [n, h block].
__device__ inline Place PlaceInSpace(const Params& shuffle, int line, int i) {
  int column, rest, pixel, channel, row, block_row;
  shuffle.by_run(column, rest, i);
  shuffle.by_channels(pixel, channel, rest);
  shuffle.by_block(row, block_row, line);
  const int within = shuffle.by_channel
                         ? channel * shuffle.square + block_row * shuffle.block + pixel
                         : block_row * shuffle.run + rest;
  return {(int64_t(line) * shuffle.w + column) * shuffle.block + pixel,
          (int64_t(row) * shuffle.w + column) * shuffle.x_pitch + within, channel};
}

// Element `i` of a pixel of y, [n, h, w].
__device__ inline Place PlaceInDepth(const Params& shuffle, int at, int i) {
  int row, column, block_row, pixel, channel;
  shuffle.by_w(row, column, at);
  if (shuffle.by_channel) {
    int of_block;
    shuffle.by_square(channel, of_block, i);
    shuffle.by_block(block_row, pixel, of_block);
  } else {
    int rest;
    shuffle.by_run(block_row, rest, i);
    shuffle.by_channels(pixel, channel, rest);
  }
  const int64_t line = int64_t(row) * shuffle.block + block_row;
  const int64_t from = (line * shuffle.w + column) * shuffle.block + pixel;
  return {at, from * shuffle.x_pitch + channel, i};
}

template <bool ToSpace>
__device__ Place PlaceOf(const Params& shuffle, int at, int i) {
  return ToSpace ? PlaceInSpace(shuffle, at, i) : PlaceInDepth(shuffle, at, i);
}

template <class Element, class Chain, int Width>
__device__ typename Chain::template Operands<Width> OperandsAt(const EpilogueArguments& epilogue,
                                                               const Place& place) {
  using Access = cutlass::AlignedArray<Element, Width>;
  using Vector = cutlass::AlignedArray<float, Width, std::min<int>(Width * sizeof(float), 16)>;
  typename Chain::template Operands<Width> operands;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < Chain::kVectors; ++v)
    operands.vectors[v] = *reinterpret_cast<const Vector*>(epilogue.vectors[v] + place.channel);
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < Chain::kTensors; ++t) {
    const Access access =
        *reinterpret_cast<const Access*>(static_cast<const Element*>(epilogue.tensors[t]) +
                                         place.pixel * epilogue.tensor_pitch[t] + place.channel);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) operands.tensors[t][i] = float(access[i]);
  }
  return operands;
}

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Output, class Chain, int Width, bool ToSpace, bool ByChannel>
static __global__ void __launch_bounds__(kThreads) move(const __grid_constant__ Params shuffle) {
  LaunchDependents();
  const int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= shuffle.outputs) return;
  int at, vector;
  shuffle.vectors(at, vector, output);
  const Element* const x = static_cast<const Element*>(shuffle.x);
  const Place place = PlaceOf<ToSpace>(shuffle, at, vector * Width);
  cutlass::AlignedArray<Element, Width> source;
  WaitForPredecessors();
  if constexpr (!ByChannel) {
    source = *reinterpret_cast<const cutlass::AlignedArray<Element, Width>*>(x + place.x);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i)
      source[i] = x[PlaceOf<ToSpace>(shuffle, at, vector * Width + i).x];
  }
  const auto operands = OperandsAt<Element, Chain, Width>(shuffle.epilogue, place);
  cutlass::Array<float, Width> values;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Width; ++i) values[i] = float(source[i]);
  cutlass::AlignedArray<Output, Width, std::min<int>(Width * sizeof(Output), 16)> result;
  static_cast<cutlass::Array<Output, Width>&>(result) =
      Chain::template finish<Output>(values, operands, shuffle.epilogue.params);
  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(shuffle.y) +
                                       place.pixel * shuffle.y_pitch + place.channel) = result;
}

}  // namespace pixel_shuffle

// One instance serves both directions and every shape of a pair of element types and an epilogue;
// the width of access is picked at launch.
template <class Config, class ElementType, class OutputType, class Chain>
struct PixelShuffle {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = 0;  // the dynamic part

  // The kernels of a width in elements: to depth by pixel and by channel, to space likewise.
  template <int Width>
  static constexpr Variant<pixel_shuffle::Params, 4> variant() {
    using pixel_shuffle::move;
    return {Width,
            {move<Element, Output, Chain, Width, false, false>,
             move<Element, Output, Chain, Width, false, true>,
             move<Element, Output, Chain, Width, true, false>,
             move<Element, Output, Chain, Width, true, true>}};
  }

  static const char* prepare() { return Variants<PixelShuffle>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const PixelShuffleArguments*>(arguments);
    if (args.block < 1) return "a block has no pixels";
    if (const char* error = CheckOperands<Chain, Element>(args.epilogue, 1)) return error;
    const int64_t pixels = int64_t(args.n) * args.h * args.w;
    return CheckExtents(pixels * args.block, int64_t(args.block) * args.c, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const PixelShuffleArguments*>(arguments);
    if (args.n == 0 || args.h == 0 || args.w == 0 || args.c == 0) return nullptr;
    const auto& variant =
        Variants<PixelShuffle>::widest([&](int width) { return fits(args, width); });
    const pixel_shuffle::Params params(args, variant.width);
    return LaunchDependent(variant.functions[2 * args.to_space + args.by_channel],
                           CeilDivide(params.outputs, pixel_shuffle::kThreads),
                           pixel_shuffle::kThreads, launch.stream, params,
                           ArchOf<Row>::kDependentLaunch);
  }

 private:
  // True if runs of the larger image, whose pixels lie `pitch` apart, are whole accesses.
  static bool runs_fit(const PixelShuffleArguments& args, int64_t pitch, int width) {
    if (pitch == args.c) return args.block * args.c % width == 0;
    return args.c % width == 0 && pitch % width == 0;
  }

  static bool fits(const PixelShuffleArguments& args, int width) {
    const bool gathered = args.by_channel, within_pixels = gathered || Chain::kVectors > 0;
    const int64_t large = args.to_space ? args.y_pitch : args.x_pitch,
                  small = args.to_space ? args.x_pitch : args.y_pitch;
    if (args.to_space && within_pixels && args.c % width != 0) return false;
    if ((args.to_space || !gathered) && !runs_fit(args, large, width)) return false;
    if ((!args.to_space || !gathered) && small % width != 0) return false;
    return args.block * args.block * args.c % width == 0 &&
           (gathered || IsAligned(args.x, width * sizeof(Element))) &&
           IsAligned(args.y, width * sizeof(Output)) &&
           !CheckOperands<Chain, Element>(args.epilogue, width);
  }
};

}  // namespace onnxbolt
