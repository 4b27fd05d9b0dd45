// Max and average pooling in NHWC with ONNX's semantics, for every architecture: accesses of up to
// 16 bytes of channels, arithmetic in fp32, in which codes of 8 bits are exact. The largest of
// codes is found without arithmetic.
//
// Three kernels: usually a thread computes one vector of channels of one output pixel; where
// windows are large and outputs few, as in global pooling, the threads of a block share a window
// and add up through shared memory; in volumes a thread goes through the slices of its window.
//
// Constraints: channels and pitches are multiples of align_a; windows, strides and dilations are
// positive.
#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "ops/pool/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace pool {

constexpr int kThreads = 256;        // threads of a block in which each works alone
constexpr int kSharedThreads = 512;  // threads of a block that share windows
constexpr int kLargeWindow = 32;     // positions

struct Params : PoolArguments {
  cutlass::FastDivmod groups, by_q, by_p, by_window_w;  // groups: vectors of channels
  int outputs;
  cutlass::FastDivmod by_slice;  // slices of y in a volume

  Params(const PoolArguments& pool, int width)
      : PoolArguments(pool),
        groups(pool.c / width),
        by_q(pool.q),
        by_p(pool.p),
        by_window_w(pool.window_w),
        outputs(pool.n * slices(pool) * pool.p * pool.q * (pool.c / width)),
        by_slice(slices(pool)) {}

  static int slices(const PoolArguments& pool) { return pool.depth.exists() ? pool.depth.y : 1; }
};

// The window of one output pixel, which may reach beyond the image.
struct Window {
  int pixel, n, top, left;

  __device__ Window(const Params& pool, int pixel) : pixel(pixel) {
    int row, p, q;
    pool.by_q(row, q, pixel);
    pool.by_p(n, p, row);
    top = p * pool.stride_h - pool.pad_top;
    left = q * pool.stride_w - pool.pad_left;
  }

  // The number that ONNX divides a mean by. Included padding ends with the padded image: with
  // ceil_mode a window may reach further.
  __device__ float count(const Params& pool) const {
    bool padded = pool.count_include_pad;
    int rows = positions(top, pool.window_h, pool.dilation_h, padded ? -pool.pad_top : 0,
                         pool.h + (padded ? pool.pad_bottom : 0));
    int columns = positions(left, pool.window_w, pool.dilation_w, padded ? -pool.pad_left : 0,
                            pool.w + (padded ? pool.pad_right : 0));
    return float(rows) * float(columns);
  }

  // The number of start, start + dilation, .. (`window` of them) in [begin, end).
  __device__ static int positions(int start, int window, int dilation, int begin, int end) {
    int first = start < begin ? (begin - start + dilation - 1) / dilation : 0;
    int last = min(window, (end - start + dilation - 1) / dilation);
    return max(last - first, 0);
  }
};

// The largest codes so far. Codes are compared as they are, without a conversion: those of even and
// of odd places of a word in two registers, each as the upper half of 16 bits.
template <class Code, int Width>
class LargestCodes {
 public:
  using Access = cutlass::AlignedArray<Code, Width>;

  __device__ LargestCodes() {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i) even_[i] = odd_[i] = kSigned ? 0x80008000 : 0;
  }

  __device__ void add(const Access& access) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&access);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i) {
      even_[i] = larger(even_[i], words[i] << 8 & kUpper);
      odd_[i] = larger(odd_[i], words[i] & kUpper);
    }
  }

  __device__ Access codes() const {
    Access access;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i)
      reinterpret_cast<uint32_t*>(&access)[i] = even_[i] >> 8 | odd_[i];
    return access;
  }

 private:
  static constexpr bool kSigned = std::is_signed_v<Code>;
  static constexpr int kWords = Width / 4;
  static constexpr uint32_t kUpper = 0xff00ff00;

  __device__ static uint32_t larger(uint32_t a, uint32_t b) {
    return kSigned ? __vmaxs2(a, b) : __vmaxu2(a, b);
  }

  uint32_t even_[kWords], odd_[kWords];
};

template <class Element, class Output, int Width, PoolKind Kind>
struct Accumulator {
  using Access = cutlass::AlignedArray<Element, Width>;
  using Result = cutlass::AlignedArray<Output, Width, std::min<int>(Width * sizeof(Output), 16)>;
  static constexpr int kBatch = 4;  // positions whose loads are under way together
  // The largest of codes is one of them, and is stored as it is.
  static constexpr bool kCodes = Kind == PoolKind::kMax && std::is_integral_v<Element> &&
                                 std::is_same_v<Element, Output> && Width % 4 == 0;
  struct Nothing {};
  cutlass::Array<float, Width> values;
  std::conditional_t<kCodes, LargestCodes<Element, Width>, Nothing> largest;

  __device__ Accumulator() { values.fill(identity()); }

  __device__ static float identity() { return Kind == PoolKind::kMax ? -INFINITY : 0.f; }

  // The value of pixels outside of the image. Codes have no infinity; none is below the least one.
  __device__ static Element outside() {
    if constexpr (Kind == PoolKind::kMax && std::is_integral_v<Element>)
      return std::numeric_limits<Element>::lowest();
    else
      return Element(identity());
  }

  __device__ static float combine(float value, float x) {
    if constexpr (Kind == PoolKind::kAverage)
      return value + x;
    else
      return x > value || x != x ? x : value;  // NaN wins, as in ORT's CUDA provider
  }

  __device__ void add(const Access& access) {
    if constexpr (kCodes) {
      largest.add(access);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int channel = 0; channel < Width; ++channel)
        values[channel] = combine(values[channel], float(access[channel]));
    }
  }

  // Makes numbers of the largest codes.
  __device__ void unpack() {
    if constexpr (kCodes) {
      const Access codes = largest.codes();
      CUTLASS_PRAGMA_UNROLL
      for (int channel = 0; channel < Width; ++channel) values[channel] = float(codes[channel]);
    }
  }

  // Row r and column s of the window; what changes nothing where that is not `wanted`, or outside
  // of the image.
  __device__ static Access at(const Params& pool, const Window& window, const Element* x, int r,
                              int s, bool wanted = true) {
    int h = window.top + r * pool.dilation_h, w = window.left + s * pool.dilation_w;
    Access access;
    access.fill(outside());
    if (wanted && h >= 0 && h < pool.h && w >= 0 && w < pool.w)
      access = *reinterpret_cast<const Access*>(x + (int64_t(h) * pool.w + w) * pool.x_pitch);
    return access;
  }

  // The channels of `group` in the window's image.
  __device__ static const Element* image(const Params& pool, const Window& window, int group) {
    return static_cast<const Element*>(pool.x) +
           int64_t(window.n) * pool.h * pool.w * pool.x_pitch + group * Width;
  }

  // A whole window whose extents the compiler knows.
  template <int R, int S>
  __device__ void scan(const Params& pool, const Window& window, int group) {
    const Element* x = image(pool, window, group);
    Access accesses[R * S];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < R * S; ++i) accesses[i] = at(pool, window, x, i / S, i % S);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < R * S; ++i) add(accesses[i]);
  }

  // Positions first, first + step, .. of the window.
  __device__ void scan(const Params& pool, const Window& window, int group, int first, int step) {
    const Element* x = image(pool, window, group);
    const int positions = pool.window_h * pool.window_w;
    for (int i = first; i < positions; i += kBatch * step) {
      Access accesses[kBatch];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        int r, s;
        pool.by_window_w(r, s, i + j * step);
        accesses[j] = at(pool, window, x, r, s, i + j * step < positions);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBatch; ++j) add(accesses[j]);
    }
  }

  // slices: of the window, as `Window::count` counts its pixels.
  __device__ void store(const Params& pool, const Window& window, int group,
                        float slices = 1.f) const {
    float scale = Kind == PoolKind::kAverage ? 1.f / (window.count(pool) * slices) : 1.f;
    Result result;
    if constexpr (kCodes) {
      result = largest.codes();
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int channel = 0; channel < Width; ++channel)
        result[channel] = Output(values[channel] * scale);
    }
    *reinterpret_cast<Result*>(static_cast<Output*>(pool.y) + int64_t(window.pixel) * pool.y_pitch +
                               group * Width) = result;
  }
};

// R and S: the window's extents, zeros where the compiler does not know them. static: units of
// other architectures hold kernels of the same name, which the linker must not merge.
template <class Element, class Output, int Width, PoolKind Kind, int R, int S>
static __global__ void __launch_bounds__(kThreads) by_thread(const __grid_constant__ Params pool) {
  LaunchDependents();
  int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= pool.outputs) return;
  int pixel, group;
  pool.groups(pixel, group, output);
  Window window(pool, pixel);
  Accumulator<Element, Output, Width, Kind> sum;
  WaitForPredecessors();
  if constexpr (R > 0)
    sum.template scan<R, S>(pool, window, group);
  else
    sum.scan(pool, window, group, 0, 1);
  sum.store(pool, window, group);
}

// Windows of several slices, each of which is scanned as an image's window is.
template <class Element, class Output, int Width, PoolKind Kind>
static __global__ void __launch_bounds__(kThreads) of_volumes(const __grid_constant__ Params pool) {
  LaunchDependents();
  int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= pool.outputs) return;
  int pixel, group, volume, slice;
  pool.groups(pixel, group, output);
  Window window(pool, pixel);
  pool.by_slice(volume, slice, window.n);
  const DepthAxis& depth = pool.depth;
  const int front = slice * depth.stride - depth.pad_front;
  Accumulator<Element, Output, Width, Kind> sum;
  WaitForPredecessors();
  for (int t = 0; t < depth.filter; ++t) {
    const int d = front + t * depth.dilation;
    if (d < 0 || d >= depth.x) continue;
    window.n = volume * depth.x + d;
    sum.scan(pool, window, group, 0, 1);
  }
  const bool padded = pool.count_include_pad;
  const int slices =
      Window::positions(front, depth.filter, depth.dilation, padded ? -depth.pad_front : 0,
                        depth.x + (padded ? depth.pad_back : 0));
  sum.store(pool, window, group, float(slices));
}

// Block (x, y): x neighbouring groups of channels, so that accesses coalesce, times y shares of the
// window. Each share's sums go through shared memory, where one thread adds up a channel.
template <class Element, class Output, int Width, PoolKind Kind>
static __global__ void __launch_bounds__(kSharedThreads)
    by_block(const __grid_constant__ Params pool) {
  __shared__ float partial[kSharedThreads * Width];
  LaunchDependents();
  int group = blockIdx.y * blockDim.x + threadIdx.x,
      thread = threadIdx.y * blockDim.x + threadIdx.x;
  Window window(pool, blockIdx.x);
  Accumulator<Element, Output, Width, Kind> sum;
  WaitForPredecessors();
  if (group < pool.groups.divisor) sum.scan(pool, window, group, threadIdx.y, blockDim.y);
  sum.unpack();
  CUTLASS_PRAGMA_UNROLL
  for (int channel = 0; channel < Width; ++channel)
    partial[thread * Width + channel] = sum.values[channel];
  __syncthreads();
  const int channels = blockDim.x * Width, first = blockIdx.y * channels;
  const float scale = Kind == PoolKind::kAverage ? 1.f / window.count(pool) : 1.f;
  for (int channel = thread; channel < channels && first + channel < pool.c;
       channel += kSharedThreads) {
    float value = partial[channel];
    for (int share = 1; share < blockDim.y; ++share)
      value = sum.combine(value, partial[share * channels + channel]);
    static_cast<Output*>(pool.y)[int64_t(window.pixel) * pool.y_pitch + first + channel] =
        Output(value * scale);
  }
}

}  // namespace pool

// One kernel serves both kinds and every shape of a pair of element types: what fits is picked at
// launch.
template <class Config, class ElementType, class OutputType>
struct Pool {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = 0;  // the dynamic part

  // The kernels of a width in channels, max and average: by block; by thread for any window, for
  // 2x2 and for 3x3; of volumes.
  template <int Width>
  static constexpr Variant<pool::Params, 10> variant() {
    constexpr PoolKind kMax = PoolKind::kMax, kAverage = PoolKind::kAverage;
    return {Width,
            {pool::by_block<Element, Output, Width, kMax>,
             pool::by_block<Element, Output, Width, kAverage>,
             pool::by_thread<Element, Output, Width, kMax, 0, 0>,
             pool::by_thread<Element, Output, Width, kAverage, 0, 0>,
             pool::by_thread<Element, Output, Width, kMax, 2, 2>,
             pool::by_thread<Element, Output, Width, kAverage, 2, 2>,
             pool::by_thread<Element, Output, Width, kMax, 3, 3>,
             pool::by_thread<Element, Output, Width, kAverage, 3, 3>,
             pool::of_volumes<Element, Output, Width, kMax>,
             pool::of_volumes<Element, Output, Width, kAverage>}};
  }

  static const char* prepare() { return Variants<Pool>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const PoolArguments*>(arguments);
    if (args.window_h < 1 || args.window_w < 1) return "an extent of the window is not positive";
    if (args.stride_h < 1 || args.stride_w < 1 || args.dilation_h < 1 || args.dilation_w < 1)
      return "a stride or dilation is not positive";
    const DepthAxis& depth = args.depth;
    if (depth.exists() && (depth.filter < 1 || depth.stride < 1 || depth.dilation < 1))
      return "the window's depth, or a stride or dilation along it, is not positive";
    const int64_t window = int64_t(args.window_h) * args.window_w;
    return CheckExtents(int64_t(args.n) * pool::Params::slices(args) * args.p * args.q * args.c,
                        args.c, depth.exists() ? depth.filter * window : window);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const PoolArguments*>(arguments);
    if (args.n == 0 || args.p == 0 || args.q == 0 || args.c == 0) return nullptr;
    const auto& variant = Variants<Pool>::widest([&](int width) { return fits(args, width); });
    pool::Params params(args, variant.width);
    int pixels = args.n * args.p * args.q, kind = static_cast<int>(args.kind);
    int blocks = (params.outputs + pool::kThreads - 1) / pool::kThreads;
    if (args.depth.exists())
      return LaunchDependent(variant.functions[kOfVolumes + kind], blocks, pool::kThreads,
                             launch.stream, params, ArchOf<Row>::kDependentLaunch);
    if (args.window_h * args.window_w >= pool::kLargeWindow &&
        params.outputs < 2048 * launch.sm_count) {
      int groups = params.groups.divisor,
          x = groups_per_block(args.window_h * args.window_w, groups, pixels, launch.sm_count);
      dim3 grid(pixels, (groups + x - 1) / x);
      dim3 block(x, pool::kSharedThreads / x);
      return LaunchDependent(variant.functions[kind], grid, block, launch.stream, params,
                             ArchOf<Row>::kDependentLaunch);
    }
    int known = args.window_h != args.window_w || args.window_h < 2 || args.window_h > 3
                    ? 1
                    : args.window_h;
    return LaunchDependent(variant.functions[2 * known + kind], blocks, pool::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  static constexpr int kOfVolumes = 8;  // the place of the kernels of volumes in a variant

  // 32 groups make the longest accesses; fewer where that occupies more SMs and still leaves every
  // thread a position.
  static int groups_per_block(int positions, int groups, int pixels, int sm_count) {
    int x = 32;
    while (x > 1 && int64_t(pixels) * ((groups + x - 1) / x) < sm_count &&
           pool::kSharedThreads / x < positions)
      x /= 2;
    return x;
  }

  static bool fits(const PoolArguments& args, int width) {
    return args.c % width == 0 && args.x_pitch % width == 0 && args.y_pitch % width == 0 &&
           IsAligned(args.x, width * sizeof(Element)) && IsAligned(args.y, width * sizeof(Output));
  }
};

}  // namespace onnxbolt
