// Resizing of images in NHWC with ONNX's semantics (Resize: nearest, linear and cubic), for every
// architecture: accesses of up to 16 bytes of channels, arithmetic in fp32.
//
// A thread makes one vector of channels of one output pixel, and applies the epilogue to it; the
// cache serves what neighbours read, too.
//
// Constraints: channels, pitches and operands are multiples of align_a; scales are positive.
#pragma once
#include <algorithm>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "epilogue/chain.h"
#include "epilogue/codes.h"
#include "ops/resize/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/integers.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace resize {

constexpr int kThreads = 256;

// One spatial axis: where in the image an output's index lies. The operations and their order are
// ONNX Runtime's, so that what lies half-way between two pixels is rounded as there.
struct Axis {
  int input, output;
  float scale;

  __device__ float position(int i, Coordinates coordinates) const {
    switch (coordinates) {
      case Coordinates::kAsymmetric:
        return i / scale;
      case Coordinates::kAlignCorners:
        return output == 1 ? 0.f : i * float(input - 1) / float(output - 1);
      case Coordinates::kPytorchHalfPixel:
        return output == 1 ? 0.f : (i + 0.5f) / scale - 0.5f;
      default:
        return (i + 0.5f) / scale - 0.5f;
    }
  }

  __device__ int clamp(int i) const { return min(max(i, 0), input - 1); }

  __device__ int nearest(int i, Coordinates coordinates, Rounding rounding) const {
    const float at = position(i, coordinates);
    switch (rounding) {
      case Rounding::kFloor:
        return clamp(int(floorf(at)));
      case Rounding::kCeil:
        return clamp(int(ceilf(at)));
      case Rounding::kPreferCeil:
        return clamp(int(floorf(at + 0.5f)));
      default:
        return clamp(int(ceilf(at - 0.5f)));
    }
  }
};

// The two pixels of an axis that an output lies between, and how far from the first.
struct Between {
  int first, second;
  float distance;

  __device__ Between(const Axis& axis, int i, Coordinates coordinates) {
    const float at = fminf(fmaxf(axis.position(i, coordinates), 0.f), float(axis.input - 1));
    first = int(at), second = axis.clamp(first + 1), distance = at - float(first);
  }
};

// The four pixels of an axis around an output, from `first` on, which may lie outside of the image,
// and their weights (Keys, "Cubic Convolution Interpolation for Digital Image Processing", 1981).
struct Around {
  int first;
  float weights[4];

  __device__ Around(const Axis& axis, int i, const ResizeArguments& resize) {
    const float at = axis.position(i, resize.coordinates), second = floorf(at),
                distance = at - second, a = resize.cubic_coeff_a;
    first = int(second) - 1;
    weights[0] = far(distance + 1.f, a), weights[1] = near(distance, a);
    weights[2] = near(1.f - distance, a), weights[3] = far(2.f - distance, a);
    if (resize.exclude_outside) exclude(axis);
  }

 private:
  // The weights of a pixel at a distance up to 1, and of one farther away.
  __device__ static float near(float distance, float a) {
    return ((a + 2.f) * distance - (a + 3.f)) * distance * distance + 1.f;
  }
  __device__ static float far(float distance, float a) {
    return ((a * distance - 5.f * a) * distance + 8.f * a) * distance - 4.f * a;
  }

  __device__ void exclude(const Axis& axis) {
    float sum = 0.f;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (axis.clamp(first + i) != first + i) weights[i] = 0.f;
      sum += weights[i];
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) weights[i] /= sum;
  }
};

struct Params : ResizeArguments {
  cutlass::FastDivmod groups, by_q, by_p;  // groups: vectors of channels
  Axis rows, columns;
  int outputs;

  Params(const ResizeArguments& resize, int width)
      : ResizeArguments(resize),
        groups(c / width),
        by_q(y_w),
        by_p(y_h),
        rows{h, p, scale_h},
        columns{w, q, scale_w},
        outputs(n * y_h * y_w * (c / width)) {}
};

template <class Element, int Width>
struct Sampler {
  using Access = cutlass::AlignedArray<Element, Width>;
  using Values = cutlass::Array<float, Width>;

  const Params& resize;
  const Element* image;  // from the thread's channels on

  __device__ Access at(int row, int column) const {
    return *reinterpret_cast<const Access*>(image +
                                            (int64_t(row) * resize.w + column) * resize.x_pitch);
  }

  __device__ Values nearest(int p, int q) const {
    const Access access = at(resize.rows.nearest(p, resize.coordinates, resize.rounding),
                             resize.columns.nearest(q, resize.coordinates, resize.rounding));
    Values result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) result[i] = float(access[i]);
    return result;
  }

  __device__ Values linear(int p, int q) const {
    const Between row(resize.rows, p, resize.coordinates),
        column(resize.columns, q, resize.coordinates);
    const Access corners[4] = {at(row.first, column.first), at(row.first, column.second),
                               at(row.second, column.first), at(row.second, column.second)};
    Values result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) {
      const float upper = between(corners[0][i], corners[1][i], column.distance);
      const float lower = between(corners[2][i], corners[3][i], column.distance);
      result[i] = upper * (1.f - row.distance) + lower * row.distance;
    }
    return result;
  }

  __device__ Values cubic(int p, int q) const {
    const Around row(resize.rows, p, resize), column(resize.columns, q, resize);
    Values sums;
    sums.clear();
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < 4; ++r) {
      CUTLASS_PRAGMA_UNROLL
      for (int s = 0; s < 4; ++s) {
        const Access access =
            at(resize.rows.clamp(row.first + r), resize.columns.clamp(column.first + s));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Width; ++i)
          sums[i] += row.weights[r] * column.weights[s] * float(access[i]);
      }
    }
    return sums;
  }

  template <ResizeMode Mode>
  __device__ Values sample(int p, int q) const {
    if constexpr (Mode == ResizeMode::kNearest)
      return nearest(p, q);
    else if constexpr (Mode == ResizeMode::kLinear)
      return linear(p, q);
    else
      return cubic(p, q);
  }

 private:
  __device__ static float between(Element first, Element second, float distance) {
    return float(first) * (1.f - distance) + float(second) * distance;
  }
};

// The epilogue's operands at a pixel of y, from `channel` on.
template <class Element, class Chain, int Width>
__device__ typename Chain::template Operands<Width> OperandsAt(const Params& resize, int n, int p,
                                                               int q, int channel) {
  using Access = cutlass::AlignedArray<Element, Width>;
  using Vector = cutlass::AlignedArray<float, Width, std::min<int>(Width * sizeof(float), 16)>;
  typename Chain::template Operands<Width> operands;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < Chain::kVectors; ++v)
    operands.vectors[v] = *reinterpret_cast<const Vector*>(resize.epilogue.vectors[v] + channel);
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < Chain::kTensors; ++t) {
    const int h = resize.tensor_h[t], w = resize.tensor_w[t];
    const int64_t pixel = (int64_t(n) * h + min(p, h - 1)) * w + min(q, w - 1);
    const Access access =
        *reinterpret_cast<const Access*>(static_cast<const Element*>(resize.epilogue.tensors[t]) +
                                         pixel * resize.epilogue.tensor_pitch[t] + channel);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) operands.tensors[t][i] = float(access[i]);
  }
  return operands;
}

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Output, class Chain, int Width, ResizeMode Mode>
static __global__ void __launch_bounds__(kThreads) sample(const __grid_constant__ Params resize) {
  LaunchDependents();
  const int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= resize.outputs) return;
  int pixel, group, row, q, n, p;
  resize.groups(pixel, group, output);
  resize.by_q(row, q, pixel);
  resize.by_p(n, p, row);
  const Sampler<Element, Width> sampler{
      resize, static_cast<const Element*>(resize.x) +
                  int64_t(n) * resize.h * resize.w * resize.x_pitch + group * Width};
  WaitForPredecessors();
  const auto operands = OperandsAt<Element, Chain, Width>(resize, n, p, q, group * Width);
  const auto values = sampler.template sample<Mode>(min(p, resize.p - 1), min(q, resize.q - 1));
  cutlass::AlignedArray<Output, Width, std::min<int>(Width * sizeof(Output), 16)> result;
  static_cast<cutlass::Array<Output, Width>&>(result) =
      Chain::template finish<Output>(values, operands, resize.epilogue.params);
  *reinterpret_cast<decltype(result)*>(static_cast<Output*>(resize.y) +
                                       int64_t(pixel) * resize.y_pitch + group * Width) = result;
}

}  // namespace resize

// One instance serves every mode and shape of a pair of element types and an epilogue; mode and
// width of access are picked at launch.
template <class Config, class ElementType, class OutputType, class Chain>
struct Resize {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = 0;  // the dynamic part

  // The kernels of a width in channels, by mode.
  template <int Width>
  static constexpr Variant<resize::Params, 3> variant() {
    return {Width,
            {resize::sample<Element, Output, Chain, Width, ResizeMode::kNearest>,
             resize::sample<Element, Output, Chain, Width, ResizeMode::kLinear>,
             resize::sample<Element, Output, Chain, Width, ResizeMode::kCubic>}};
  }

  static const char* prepare() { return Variants<Resize>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const ResizeArguments*>(arguments);
    if (!is_known(args))
      return "the mode, the coordinates or the rounding is none that the kernel knows";
    if (args.h < 1 || args.w < 1) return "there is no pixel to take";
    if (!(args.scale_h > 0 && args.scale_w > 0)) return "a scale is not positive";
    if (!serves(args.p, args.y_h) || !serves(args.q, args.y_w))
      return "y has neither the resized height and width nor those of the epilogue's tensors";
    for (int t = 0; t < Chain::kTensors; ++t) {
      if (!serves(args.tensor_h[t], args.y_h) || !serves(args.tensor_w[t], args.y_w))
        return "an epilogue tensor has another height or width than y";
    }
    if (const char* error = CheckOperands<Chain, Element>(args.epilogue, 1)) return error;
    return CheckExtents(int64_t(args.n) * args.y_h * args.y_w * args.c, args.c, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const ResizeArguments*>(arguments);
    if (args.n == 0 || args.y_h == 0 || args.y_w == 0 || args.c == 0) return nullptr;
    const auto& variant = Variants<Resize>::widest([&](int width) { return fits(args, width); });
    const resize::Params params(args, variant.width);
    return LaunchDependent(variant.functions[static_cast<int>(args.mode)],
                           CeilDivide(params.outputs, resize::kThreads), resize::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  // True if so many rows (columns) of pixels are those of y, or one for all of them.
  static bool serves(int extent, int y) { return extent == y || extent == 1; }

  // They come as numbers from a node's attribute.
  static bool is_known(const ResizeArguments& args) {
    const auto within = [](auto value, auto last) { return int(value) >= 0 && value <= last; };
    return within(args.mode, ResizeMode::kCubic) &&
           within(args.coordinates, Coordinates::kAlignCorners) &&
           within(args.rounding, Rounding::kCeil);
  }

  static bool fits(const ResizeArguments& args, int width) {
    return args.c % width == 0 && args.x_pitch % width == 0 && args.y_pitch % width == 0 &&
           IsAligned(args.x, width * sizeof(Element)) &&
           IsAligned(args.y, width * sizeof(Output)) &&
           !CheckOperands<Chain, Element>(args.epilogue, width);
  }
};

}  // namespace onnxbolt
