// Depthwise convolution in NHWC (groups == channels in == channels out) for every architecture,
// with fp32 sums on the CUDA cores. Tensor cores would multiply by zeros: memory, not arithmetic,
// is the limit.
//
// A thread computes neighbouring channels of a small tile of output pixels, so that an input that
// it has loaded serves all filter positions that need it; L1 holds what tiles of a block share.
//
// Constraints: the filter's extents and stride are the configuration's, or, where those are 0, any
// that fit shared memory; channels and pitches are multiples of align_a.
#pragma once
#include <algorithm>

#include "channelwise/tile.h"
#include "ops/conv/check.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace depthwise {

// Sums of a thread's tile where the filter's extents and stride are known to the compiler: each
// input is loaded once. Those of codes are integers below 2^24, which fp32 has.
template <class Element, class Shape>
struct FixedSums {
  using Row = Values<Shape::kWidth>[Shape::kWindowColumns];
  Values<Shape::kWidth> sums[Shape::kRows][Shape::kColumns];

  __device__ void compute(const Params& conv, const Place<Shape>& place,
                          const Filter<Shape>& filter) {
    const int top = place.row * Shape::kStride - conv.pad_top,
              left = place.column * Shape::kStride - conv.pad_left;
    const int64_t row_pitch = conv.w * conv.x_pitch;
    // the window's first pixel, which is not read if it lies outside of the image
    auto x = static_cast<const Element*>(conv.x) +
             (int64_t(place.image) * conv.h + top) * row_pitch + left * conv.x_pitch +
             place.channel;
    uint32_t columns = 0;  // a bit for each column of the window that is inside
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Shape::kWindowColumns; ++i)
      columns |= uint32_t(unsigned(left + i) < unsigned(conv.w)) << i;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Shape::kRows * Shape::kColumns; ++i)
      sums[i / Shape::kColumns][i % Shape::kColumns].clear();
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < Shape::kWindowRows; ++h) {
      Row row;
      load(x + h * row_pitch, conv.x_pitch, unsigned(top + h) < unsigned(conv.h) ? columns : 0,
           conv.zero, row);
      CUTLASS_PRAGMA_UNROLL
      for (int p = 0; p < Shape::kRows; ++p) {
        const int r = h - p * Shape::kStride;
        if (r >= 0 && r < Shape::kR) add(row, filter, r, sums[p]);
      }
    }
  }

 private:
  // One row of the window; zeros where `inside` has no bit.
  __device__ static void load(const Element* x, int64_t pitch, uint32_t inside, float zero,
                              Row& row) {
    using Loaded = Access<Element, Shape::kWidth>;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Shape::kWindowColumns; ++i, x += pitch) {
      Loaded access;
      access.clear();
      const bool read = inside >> i & 1;
      if (read) access = *reinterpret_cast<const Loaded*>(x);
      row[i] = epilogue::widened<Element, Shape::kWidth>(access, read ? zero : 0.f);
    }
  }

  // Filter row r over a row of the window.
  __device__ static void add(const Row& row, const Filter<Shape>& filter, int r,
                             Values<Shape::kWidth> (&sums)[Shape::kColumns]) {
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < Shape::kS; ++s) {
      const Values<Shape::kWidth> weights = filter.at(r * Shape::kS + s);
      CUTLASS_PRAGMA_UNROLL
      for (int q = 0; q < Shape::kColumns; ++q) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Shape::kWidth; ++i)
          sums[q][i] += row[q * Shape::kStride + s][i] * weights[i];
      }
    }
  }
};

// The same for any extents, strides and dilations: a tap's weights serve the tile's pixels, inputs
// are loaded for each tap.
template <class Element, class Shape>
struct AnySums {
  Values<Shape::kWidth> sums[1][Shape::kColumns];

  __device__ void compute(const Params& conv, const Place<Shape>& place,
                          const Filter<Shape>& filter) {
    const int top = place.row * conv.stride_h - conv.pad_top,
              left = place.column * conv.stride_w - conv.pad_left;
    auto image = static_cast<const Element*>(conv.x) +
                 int64_t(place.image) * conv.h * conv.w * conv.x_pitch + place.channel;
    CUTLASS_PRAGMA_UNROLL
    for (int q = 0; q < Shape::kColumns; ++q) sums[0][q].clear();
    for (int r = 0; r < conv.r; ++r) {
      const int h = top + r * conv.dilation_h;
      if (h < 0 || h >= conv.h) continue;
      for (int s = 0; s < conv.s; ++s)
        add(conv, image, h, left + s * conv.dilation_w, filter.at(r * conv.s + s));
    }
  }

 private:
  __device__ void add(const Params& conv, const Element* image, int h, int left,
                      const Values<Shape::kWidth>& weights) {
    using Loaded = Access<Element, Shape::kWidth>;
    CUTLASS_PRAGMA_UNROLL
    for (int q = 0; q < Shape::kColumns; ++q) {
      const int w = left + q * conv.stride_w;
      if (w < 0 || w >= conv.w) continue;
      const Values<Shape::kWidth> values = epilogue::widened<Element, Shape::kWidth>(
          *reinterpret_cast<const Loaded*>(image + int64_t(h * conv.w + w) * conv.x_pitch),
          conv.zero);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Shape::kWidth; ++i) sums[0][q][i] += values[i] * weights[i];
    }
  }
};

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Output, class Chain, class Shape>
static __global__ void __launch_bounds__(Shape::kThreads)
    convolve(const __grid_constant__ Params conv) {
  using Sums = cutlass::platform::conditional_t<Shape::kFixed, FixedSums<Element, Shape>,
                                                AnySums<Element, Shape>>;
  extern __shared__ float4 shared_memory[];
  const SharedFilter<Shape::kWidth> shared{reinterpret_cast<float*>(shared_memory)};
  LaunchDependents();
  const Place<Shape> place(conv);
  shared.template fill<WeightOf<Element>, Shape::kR * Shape::kS>(conv, place.first_channel);
  __syncthreads();
  if (!place.inside) return;
  const Filter<Shape> filter(shared);
  Epilogue<Element, Output, Chain, Shape> epilogue(conv, place.channel);
  WaitForPredecessors();
  Sums tile;
  tile.compute(conv, place, filter);
  CUTLASS_PRAGMA_UNROLL
  for (int p = 0; p < Shape::kRows; ++p) epilogue.store(conv, place, p, tile.sums[p]);
}

// y[n, p, q, c] = epilogue(sum over r, s of x[n, h, w, c] * w[c, r, s]). Columns of the row:
// threadblock = rows and columns of a thread's tile of output pixels, and threads; warp = R, S and
// stride of the filters that it serves, zeros for any; align_a = channels of a thread.
template <class Config, class ElementType, class OutputType, class Chain>
struct Convolution {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Shape = depthwise::Shape<Config>;
  static constexpr int kSharedMemory = 48 * 1024;  // at most; what a block has without asking

  static const char* prepare() { return ReserveSharedMemory(kernel, kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (conv.groups != conv.c || conv.k != conv.c)
      return "a depthwise convolution has as many groups and output channels as channels";
    if (const char* error = CheckLayout(conv, false)) return error;
    if (const char* error = check_filter(conv)) return error;
    const int64_t rows = (conv.p + Shape::kRows - 1) / Shape::kRows,
                  columns = (conv.q + Shape::kColumns - 1) / Shape::kColumns;
    if (const char* error = CheckExtents(conv.n * rows * columns * conv.c / Shape::kWidth,
                                         int64_t(conv.h) * conv.w, 1))
      return error;
    if (conv.c % Shape::kWidth != 0 || conv.x_pitch % Shape::kWidth != 0 ||
        !IsAligned(conv.x, Shape::kWidth * sizeof(Element)))
      return "x, its pitch or c is not aligned to align_a elements";
    if (conv.y_pitch % Shape::kWidth != 0 || !IsAligned(conv.y, Shape::kWidth * sizeof(Output)))
      return "y or its pitch is not aligned to align_a elements";
    return CheckOperands<Chain, Element>(conv.epilogue, Shape::kWidth);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    return run(*static_cast<const ConvArguments*>(arguments), launch, 0);
  }

 protected:
  // `zero`: the zero point of x, where x are codes.
  static const char* run(const ConvArguments& conv, const Launch& launch, int zero) {
    if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.c == 0) return nullptr;
    const int lanes = lanes_of(conv), tiles_of_block = Shape::kThreads / lanes;
    Params params(conv, Shape::kRows, Shape::kColumns, lanes * Shape::kWidth);
    params.zero = float(zero);
    const int blocks = (params.tiles + tiles_of_block - 1) / tiles_of_block * params.chunks.divisor;
    return LaunchDependent(kernel, blocks, dim3(lanes, tiles_of_block), launch.stream, params,
                           ArchOf<Row>::kDependentLaunch, lanes * lane_bytes(conv));
  }

 private:
  static constexpr auto kernel = convolve<Element, Output, Chain, Shape>;

  // Shared memory of one lane: its channels' weights.
  static int lane_bytes(const ConvArguments& conv) {
    return conv.r * conv.s * Shape::kWidth * int(sizeof(float));
  }

  static const char* check_filter(const ConvArguments& conv) {
    if (conv.r < 1 || conv.s < 1 ||
        int64_t(conv.r) * conv.s * Shape::kWidth > kSharedMemory / int(sizeof(float)))
      return "the filter is empty, or too large for shared memory";
    if constexpr (Shape::kFixed) {
      if (conv.r != Shape::kR || conv.s != Shape::kS)
        return "the filter's extents are not those of the configuration";
      if (conv.stride_h != Shape::kStride || conv.stride_w != Shape::kStride)
        return "the stride is not that of the configuration";
      if (conv.dilation_h != 1 || conv.dilation_w != 1)
        return "a configuration for one filter knows no dilation";
    }
    return nullptr;
  }

  // Vectors of channels that a block works on: about 64 to 128 bytes of each pixel, in whole
  // sectors of 32, or all of its channels. Of such numbers the one that leaves the fewest threads
  // idle; of equal ones the largest.
  static int lanes_of(const ConvArguments& conv) {
    const int vectors = conv.c / Shape::kWidth, bytes = Shape::kWidth * int(sizeof(Element)),
              sector = bytes < 32 ? 32 / bytes : 1;
    const int most =
        std::min({Shape::kThreads, kSharedMemory / lane_bytes(conv), std::max(192 / bytes, 1)});
    if (vectors <= most) return vectors;
    int best = std::min(most, sector);
    double busy = 0;
    for (int lanes = std::min(most, 2 * sector); lanes <= most; lanes += sector) {
      const double share =
          double(vectors) / ((vectors + lanes - 1) / lanes * lanes) * used_threads(lanes);
      if (share >= busy) best = lanes, busy = share;
    }
    return best;
  }

  // The share of busy threads in the warps of a block of so many lanes.
  static double used_threads(int lanes) {
    const int threads = Shape::kThreads / lanes * lanes;
    return double(threads) / ((threads + 31) / 32 * 32);
  }
};

}  // namespace depthwise
}  // namespace onnxbolt
