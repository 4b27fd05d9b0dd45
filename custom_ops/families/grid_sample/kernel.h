// Images sampled at given positions in NHWC with ONNX's semantics (GridSample: nearest and
// bilinear), and weighted sums of such pixels, as deformable attention has them (Zhu et al. 2020),
// for every architecture: accesses of up to 16 bytes of channels, arithmetic in fp32.
//
// A thread computes a vector of channels of one head of one query. Neighbouring threads have the
// same points; caches serve their positions and weights.
//
// Constraints: channels of a head and pitches are multiples of align_a.
#pragma once
#include <algorithm>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "ops/grid_sample/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/integers.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace grid_sample {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // the compiler spills registers for more blocks of a multiprocessor

struct Params : GridSampleArguments {
  cutlass::FastDivmod vectors, by_heads, by_queries;  // vectors of a head's channels
  int outputs;

  Params(const GridSampleArguments& sample, int width)
      : GridSampleArguments(sample),
        vectors(size / width),
        by_heads(heads),
        by_queries(queries),
        outputs(n * queries * heads * (size / width)) {}
};

// A position between -1 and 1 as one between the pixels of an axis, and what lies outside of it.
struct Axis {
  int size;
  bool align_corners;
  Outside outside;

  __device__ float position(float at) const {
    const float place = align_corners ? (at + 1.f) * 0.5f * float(size - 1)
                                      : ((at + 1.f) * float(size) - 1.f) * 0.5f;
    if (outside == Outside::kBorder) return fminf(fmaxf(place, 0.f), float(size - 1));
    return outside == Outside::kReflection ? reflected(place) : place;
  }

  // The nearest pixel of the image; with zeros outside, `has` says whether there is one.
  __device__ int clamp(int i) const { return min(max(i, 0), size - 1); }
  __device__ bool has(int i) const { return outside != Outside::kZeros || (i >= 0 && i < size); }

 private:
  // At the centres of the outermost pixels, or at their edges.
  __device__ float reflected(float place) const {
    const float low = align_corners ? 0.f : -0.5f, span = align_corners ? size - 1 : size;
    if (span <= 0.f) return 0.f;
    // an approximate quotient may miss a turn at an edge, from which both turns are the same
    const float distance = fabsf(place - low), turns = floorf(__fdividef(distance, span));
    const float rest = distance - turns * span;
    const bool odd = turns - 2.f * floorf(turns * 0.5f) > 0.5f;
    return fminf(fmaxf(odd ? low + span - rest : low + rest, 0.f), float(size - 1));
  }
};

template <class Element, int Width>
struct Sampler {
  using Access = cutlass::AlignedArray<Element, Width>;
  using Values = cutlass::Array<float, Width>;

  const Element* image;  // the head's channels of the level's first pixel
  int64_t pitch;
  Axis rows, columns;

  __device__ void add(Values& sum, int row, int column, float weight) const {
    if (!rows.has(row) || !columns.has(column)) return;
    const int64_t pixel = int64_t(rows.clamp(row)) * columns.size + columns.clamp(column);
    const Access access = *reinterpret_cast<const Access*>(image + pixel * pitch);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) sum[i] += weight * float(access[i]);
  }

  // Adds `weight` times the pixel at (x, y), which NaNs leave out.
  template <SampleMode Mode>
  __device__ void add_at(Values& sum, float x, float y, float weight) const {
    const float column = columns.position(x), row = rows.position(y);
    // far outside, positions have no place among the integers
    if (!(column > -2.f && column < columns.size + 1.f && row > -2.f && row < rows.size + 1.f))
      return;
    if constexpr (Mode == SampleMode::kNearest) {
      add(sum, int(rintf(row)), int(rintf(column)), weight);
    } else {
      const float top = floorf(row), left = floorf(column);
      const float down = row - top, right = column - left;
      add(sum, int(top), int(left), weight * (1.f - down) * (1.f - right));
      add(sum, int(top), int(left) + 1, weight * (1.f - down) * right);
      add(sum, int(top) + 1, int(left), weight * down * (1.f - right));
      add(sum, int(top) + 1, int(left) + 1, weight * down * right);
    }
  }
};

template <class Element>
__device__ float GridAt(const GridSampleArguments& sample, int64_t place) {
  return sample.grid_f32 ? static_cast<const float*>(sample.grid)[place]
                         : float(static_cast<const Element*>(sample.grid)[place]);
}

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Output, int Width, SampleMode Mode>
static __global__ void __launch_bounds__(kThreads, kBlocks)
    apply(const __grid_constant__ Params sample) {
  LaunchDependents();
  const int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= sample.outputs) return;
  int unit, vector, row, head, n, query;  // unit: the head of a query
  sample.vectors(unit, vector, output);
  sample.by_heads(row, head, unit);
  sample.by_queries(n, query, row);
  const int channel = head * sample.size + vector * Width;
  const Element* const x =
      static_cast<const Element*>(sample.x) + n * sample.rows * sample.x_pitch + channel;
  typename Sampler<Element, Width>::Values sum;
  sum.clear();
  WaitForPredecessors();
  int64_t point = int64_t(unit) * sample.levels * sample.points;
  for (int l = 0; l < sample.levels; ++l) {
    const SampledLevel& level = sample.level[l];
    const Sampler<Element, Width> sampler{x + level.first * sample.x_pitch,
                                          sample.x_pitch,
                                          {level.h, sample.align_corners, sample.outside},
                                          {level.w, sample.align_corners, sample.outside}};
#pragma unroll 2
    for (int i = 0; i < sample.points; ++i, ++point) {
      const float weight =
          sample.weights ? float(static_cast<const Element*>(sample.weights)[point]) : 1.f;
      sampler.template add_at<Mode>(sum, GridAt<Element>(sample, 2 * point),
                                    GridAt<Element>(sample, 2 * point + 1), weight);
    }
  }
  cutlass::AlignedArray<Output, Width, std::min<int>(Width * sizeof(Output), 16)> result;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Width; ++i) result[i] = Output(sum[i]);
  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(sample.y) +
                                       int64_t(row) * sample.y_pitch + channel) = result;
}

}  // namespace grid_sample

// One instance serves every shape of a pair of element types; mode and width of access are picked
// at launch.
template <class Config, class ElementType, class OutputType>
struct GridSample {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = 0;  // the dynamic part

  // The kernels of a width in channels, by mode.
  template <int Width>
  static constexpr Variant<grid_sample::Params, 2> variant() {
    return {Width,
            {grid_sample::apply<Element, Output, Width, SampleMode::kNearest>,
             grid_sample::apply<Element, Output, Width, SampleMode::kLinear>}};
  }

  static const char* prepare() { return Variants<GridSample>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const GridSampleArguments*>(arguments);
    const auto within = [](auto value, auto last) { return int(value) >= 0 && value <= last; };
    if (!within(args.mode, SampleMode::kLinear) || !within(args.outside, Outside::kReflection))
      return "the mode or what lies outside is none that the kernel knows";
    if (args.levels < 1 || args.levels > kMaxSampledLevels) return "there are too many levels";
    if (args.points < 1) return "there are no points";
    if (!args.weights && (args.levels > 1 || args.points > 1)) return "several points need weights";
    for (int l = 0; l < args.levels; ++l) {
      const SampledLevel& level = args.level[l];
      if (level.h < 1 || level.w < 1) return "there is no pixel to take";
      if (level.first < 0 || level.first + int64_t(level.h) * level.w > args.rows)
        return "a level has more pixels than x has rows";
    }
    const int64_t units = int64_t(args.n) * args.queries * args.heads;
    if (const char* error = CheckExtents(args.n * args.rows, args.heads * args.size, 1))
      return error;
    return CheckExtents(units * args.levels * args.points, args.size, 2);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const GridSampleArguments*>(arguments);
    if (args.n == 0 || args.queries == 0 || args.heads == 0 || args.size == 0) return nullptr;
    const auto& variant =
        Variants<GridSample>::widest([&](int width) { return fits(args, width); });
    const grid_sample::Params params(args, variant.width);
    return LaunchDependent(variant.functions[static_cast<int>(args.mode)],
                           CeilDivide(params.outputs, grid_sample::kThreads), grid_sample::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  static bool fits(const GridSampleArguments& args, int width) {
    return args.size % width == 0 && args.x_pitch % width == 0 && args.y_pitch % width == 0 &&
           IsAligned(args.x, width * sizeof(Element)) && IsAligned(args.y, width * sizeof(Output));
  }
};

}  // namespace onnxbolt
