// Kernels for the CPU, naive and float32, behind the interface of the CUDA ones: what the library
// hands them can be checked without a GPU.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "ops/attention/arguments.h"
#include "ops/conv_chain/arguments.h"
#include "ops/elementwise/arguments.h"
#include "ops/gemm/arguments.h"
#include "ops/grid_sample/arguments.h"
#include "ops/group_norm/arguments.h"
#include "ops/layout/arguments.h"
#include "ops/norm/arguments.h"
#include "ops/pool/arguments.h"
#include "ops/quantized/arguments.h"
#include "ops/pixel_shuffle/arguments.h"
#include "ops/resize/arguments.h"
#include "ops/squeeze_excite/arguments.h"
#include "runtime/kernel.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

inline std::atomic<int64_t> launches{0}, last_max_m{0};
inline int last_pads[4] = {};  // top, left, bottom, right, of the last convolution or pooling
inline int last_slices = 0;    // slices of y of the last one of volumes, 0 of images
inline int64_t most_rows = INT64_MAX;  // that a kernel takes
inline const char* prepare_error = nullptr;
inline const char* launch_error = nullptr;

namespace onnxbolt::host {

// Bias (if any), residual (if any), LeakyReLU whose slope is parameter 0.
inline float Finish(const EpilogueArguments& e, float x, int64_t row, int64_t channel) {
  if (e.vectors[0]) x += e.vectors[0][channel];
  if (e.tensors[0]) x += static_cast<const float*>(e.tensors[0])[row * e.tensor_pitch[0] + channel];
  return x > 0 ? x : e.params[0] * x;
}

// The rotation of pairs of columns.
inline void Rotate(const RotationArguments& r, float* row, int64_t m) {
  const float* table = static_cast<const float*>(r.table) + (r.first + m) % r.rows * r.width;
  for (int64_t n = 0; n < r.columns; n += 2) {
    const float a = row[n], b = row[n + 1], *turn = table + n % r.width;
    row[n] = a * turn[0] - b * turn[1], row[n + 1] = b * turn[0] + a * turn[1];
  }
}

inline void Compute(const GemmArguments& g) {
  const bool rotates = g.epilogue.rotation.table != nullptr;
  for (int64_t whole = 0; whole < g.batches * g.m; ++whole) {
    const int64_t batch = whole / g.m, m = whole;
    const float *a = static_cast<const float*>(g.a) + batch * (g.a_stride - g.m * g.lda),
                *b = static_cast<const float*>(g.b) + batch * g.b_stride;
    float* const row = static_cast<float*>(g.d) + m * g.ldd;
    for (int64_t n = 0; n < g.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < g.k; ++k) sum += a[m * g.lda + k] * b[n * g.ldb + k];
      row[n] = rotates ? sum : Finish(g.epilogue, sum, m, n);
    }
    if (!rotates) continue;
    for (int64_t n = 0; n < g.n; ++n) row[n] += g.epilogue.vectors[0][n];
    Rotate(g.epilogue.rotation, row, m);
  }
}

// A gated unit: rows of B in turns of 8 are the product, and what its epilogue is multiplied by,
// plus the second vector.
struct GatedArguments : GemmArguments {};

inline void Compute(const GatedArguments& g) {
  const auto *a = static_cast<const float*>(g.a), *b = static_cast<const float*>(g.b);
  const auto product = [&](int64_t m, int64_t row) {
    float sum = 0;
    for (int64_t k = 0; k < g.k; ++k) sum += a[m * g.lda + k] * b[row * g.ldb + k];
    return sum;
  };
  for (int64_t m = 0; m < g.m; ++m) {
    for (int64_t n = 0; n < g.n; ++n) {
      const int64_t row = n / 8 * 16 + n % 8;
      static_cast<float*>(g.d)[m * g.ldd + n] = Finish(g.epilogue, product(m, row), m, n) *
                                                (product(m, row + 8) + g.epilogue.vectors[1][n]);
    }
  }
}

// Calls visit(h, w, r, s) for each position of the window at output pixel (p, q) that lies in the
// image.
template <class Window, class Visit>
void ForEachTap(const Window& c, int window_h, int window_w, int p, int q, Visit visit) {
  for (int r = 0; r < window_h; ++r) {
    for (int s = 0; s < window_w; ++s) {
      const int h = p * c.stride_h - c.pad_top + r * c.dilation_h,
                w = q * c.stride_w - c.pad_left + s * c.dilation_w;
      if (h >= 0 && h < c.h && w >= 0 && w < c.w) visit(h, w, r, s);
    }
  }
}

// These kernels take the output's extents and need not know where an image ends; CUDA kernels may.
template <class Window>
void RememberPads(const Window& c) {
  const int pads[] = {c.pad_top, c.pad_left, c.pad_bottom, c.pad_right};
  std::copy(std::begin(pads), std::end(pads), last_pads);
}

// The phases of a transposed convolution: rows of all columns, then each pixel where it lies.
inline void ComputePhases(const ConvArguments& c);

inline void Compute(const ConvArguments& c) {
  RememberPads(c);
  if (c.pixels.apart()) return ComputePhases(c);
  const auto *x = static_cast<const float*>(c.x), *filter = static_cast<const float*>(c.filter);
  const int group_c = c.c / c.groups, group_k = c.k / c.groups;
  const DepthAxis depth = c.depth.exists() ? c.depth : DepthAxis{1, 1, 1};
  last_slices = c.depth.y;
  for (int64_t row = 0; row < int64_t{c.n} * depth.y * c.p * c.q; ++row) {
    const int p = row / c.q % c.p, q = row % c.q, o = row / (c.p * c.q) % depth.y,
              n = row / (c.p * c.q) / depth.y;
    for (int k = 0; k < c.k; ++k) {
      float sum = 0;
      for (int t = 0; t < depth.filter; ++t) {
        const int d = o * depth.stride - depth.pad_front + t * depth.dilation;
        if (d < 0 || d >= depth.x) continue;
        ForEachTap(c, c.r, c.s, p, q, [&](int h, int w, int r, int s) {
          const int64_t first = k / group_k * group_c, plane = int64_t{c.h} * c.w,
                        pixel = int64_t{h} * c.w + w, slice = int64_t{n} * depth.x + d;
          const float* from = x + (c.x_nchw ? (n * c.c + first) * plane + pixel
                                            : (slice * plane + pixel) * c.x_pitch + first);
          const int64_t tap = (t * c.r + r) * c.s + s, taps = depth.filter * c.r * c.s;
          const float* weights = filter + (k * taps + tap) * group_c;
          for (int i = 0; i < group_c; ++i) sum += from[i * (c.x_nchw ? plane : 1)] * weights[i];
        });
      }
      const int64_t plane = int64_t{c.p} * c.q, planes = c.k - c.padding;
      const float value = Finish(c.epilogue, sum, row, k);
      if (c.stored) static_cast<float*>(c.stored)[row * c.k + k] = value;
      if (k >= planes) continue;
      static_cast<float*>(
          c.y)[c.y_nchw ? (n * planes + k) * plane + row % plane : row * c.y_pitch + k] = value;
    }
  }
}

inline void ComputePhases(const ConvArguments& c) {
  std::vector<float> values(int64_t{c.n} * c.p * c.q * c.k);
  ConvArguments conv = c;
  conv.y = values.data(), conv.y_pitch = c.k, conv.pixels = {}, conv.epilogue = {};
  conv.epilogue.params[0] = 1;
  Compute(conv);
  const PhasedPixels& to = c.pixels;
  const int width = c.k / c.groups / to.count();
  for (int64_t i = 0; i < int64_t(values.size()); ++i) {
    const int column = i % c.k, group = column / (c.k / c.groups), phase = column / width;
    const int64_t row = i / c.k, n = row / c.q / c.p * to.d + phase / to.w / to.h % to.d;
    const int h = row / c.q % c.p * to.h + phase / to.w % to.h - to.top,
              w = row % c.q * to.w + phase % to.w - to.left;
    if (h < 0 || h >= to.height || w < 0 || w >= to.width) continue;
    const int64_t pixel = (n * to.height + h) * to.width + w;
    const int channel = group * width + column % width;
    EpilogueArguments epilogue = c.epilogue;  // vectors have all columns
    for (const float*& vector : epilogue.vectors) vector = vector ? vector + column - channel : 0;
    static_cast<float*>(c.y)[pixel * c.y_pitch + channel] =
        Finish(epilogue, values[i], pixel, channel);
  }
}

// A convolution whose output is the mean over each image.
struct MeanArguments : ConvArguments {};

inline void Compute(const MeanArguments& c) {
  const int64_t pixels = int64_t{c.p} * c.q;
  std::vector<float> values(c.n * pixels * c.k);
  ConvArguments conv = c;
  conv.y = values.data(), conv.y_pitch = c.k;
  Compute(conv);
  for (int64_t n = 0; n < c.n; ++n) {
    for (int k = 0; k < c.k; ++k) {
      float sum = 0;
      for (int64_t pixel = 0; pixel < pixels; ++pixel)
        sum += values[(n * pixels + pixel) * c.k + k];
      static_cast<float*>(c.y)[n * c.y_pitch + k] = sum / pixels;
    }
  }
}

// The layers behind the first, whose result this is.
inline void ComputeFrom(std::vector<float> value, const ChainArguments& c) {
  for (int i = 1; i < c.layers; ++i) {
    std::vector<float> next(c.m * c.n[i]);
    const bool last = i + 1 == c.layers;
    Compute(GemmArguments{c.m, c.n[i], c.n[i - 1], value.data(), c.weights[i],
                          last ? c.d : next.data(), c.n[i - 1], c.n[i - 1], last ? c.ldd : c.n[i],
                          c.epilogue[i]});
    value.swap(next);
  }
}

inline void Compute(const ChainArguments& c) {
  std::vector<float> value(c.m * c.n[0]);
  Compute(GemmArguments{c.m, c.n[0], c.k, c.a, c.weights[0], value.data(), c.lda, c.weight_pitch(0),
                        c.n[0], c.epilogue[0]});
  if (c.stored) std::copy(value.begin(), value.end(), static_cast<float*>(c.stored));
  ComputeFrom(value, c);
}

inline void Compute(const ConvChainArguments& c) {
  std::vector<float> value(c.chain.m * c.conv.k);
  ConvArguments first = c.conv;
  first.y = value.data(), first.y_pitch = first.k;
  Compute(first);
  ComputeFrom(value, c.chain);
}

inline void Compute(const PoolArguments& c) {
  RememberPads(c);
  const auto* x = static_cast<const float*>(c.x);
  const DepthAxis depth = c.depth.exists() ? c.depth : DepthAxis{1, 1, 1};
  last_slices = c.depth.y;
  for (int64_t row = 0; row < int64_t{c.n} * depth.y * c.p * c.q; ++row) {
    const int o = row / (c.p * c.q) % depth.y, n = row / (c.p * c.q) / depth.y, p = row / c.q % c.p,
              q = row % c.q;
    for (int channel = 0; channel < c.c; ++channel) {
      float sum = 0, largest = -std::numeric_limits<float>::infinity();
      int count = 0;
      for (int t = 0; t < depth.filter; ++t) {
        const int d = o * depth.stride - depth.pad_front + t * depth.dilation;
        if (d < 0 || d >= depth.x) continue;
        ForEachTap(c, c.window_h, c.window_w, p, q, [&](int h, int w, int, int) {
          const int64_t slice = int64_t{n} * depth.x + d;
          const float value = x[((slice * c.h + h) * c.w + w) * c.x_pitch + channel];
          sum += value, largest = std::max(largest, value), ++count;
        });
      }
      if (c.count_include_pad) count = depth.filter * c.window_h * c.window_w;
      static_cast<float*>(c.y)[row * c.y_pitch + channel] =
          c.kind == PoolKind::kMax ? largest : sum / count;
    }
  }
}

inline void Compute(const LayoutArguments& c) {
  for (int64_t i = 0; i < int64_t{c.n} * c.stored * c.pixels; ++i) {
    const int channel = i % c.stored;
    const int64_t image = i / c.stored / c.pixels, pixel = i / c.stored % c.pixels;
    const int64_t plain = (image * c.channels + channel) * c.pixels + pixel;
    const auto* x = static_cast<const float*>(c.x);
    auto* y = static_cast<float*>(c.y);
    if (c.to_last)
      y[i] = channel < c.channels ? x[plain] : 0;
    else if (channel < c.channels)
      y[plain] = x[i];
  }
}

// Half-pixel or asymmetric coordinates; of nearest, those that are rounded down; of cubic, those
// without pixels outside. One row or column of pixels serves all of y.
inline void Compute(const ResizeArguments& c) {
  const bool half = c.coordinates == Coordinates::kHalfPixel;
  const auto cubic = [&](float at, int input) {
    const float d = std::abs(at - input), a = c.cubic_coeff_a;
    return d <= 1  ? ((a + 2) * d - (a + 3)) * d * d + 1
           : d < 2 ? a * (((d - 5) * d + 8) * d - 4)
                   : 0.f;
  };
  const auto weight = [&](int output, float scale, int size, int input) {
    const float at = half ? (output + 0.5f) / scale - 0.5f : output / scale,
                inside = std::clamp(at, 0.f, size - 1.f);
    if (c.mode == ResizeMode::kCubic) {
      float sum = 0;
      for (int i = 0; i < size; ++i) sum += cubic(at, i);
      return cubic(at, input) / sum;
    }
    return c.mode == ResizeMode::kNearest ? float(input == std::floor(inside))
                                          : std::max(0.f, 1 - std::abs(inside - input));
  };
  for (int64_t row = 0; row < int64_t{c.n} * c.y_h * c.y_w; ++row) {
    const int n = row / (c.y_h * c.y_w), p = row / c.y_w % c.y_h, q = row % c.y_w;
    const int64_t other =
        (int64_t{n} * c.tensor_h[0] + std::min(p, c.tensor_h[0] - 1)) * c.tensor_w[0] +
        std::min(q, c.tensor_w[0] - 1);
    for (int channel = 0; channel < c.c; ++channel) {
      float sum = 0;
      for (int h = 0; h < c.h; ++h) {
        for (int w = 0; w < c.w; ++w) {
          const float x = static_cast<const float*>(
              c.x)[((int64_t{n} * c.h + h) * c.w + w) * c.x_pitch + channel];
          sum += weight(std::min(p, c.p - 1), c.scale_h, c.h, h) *
                 weight(std::min(q, c.q - 1), c.scale_w, c.w, w) * x;
        }
      }
      static_cast<float*>(c.y)[row * c.y_pitch + channel] =
          c.epilogue.tensors[0] ? Finish(c.epilogue, sum, other, channel) : sum;
    }
  }
}

// Elements of y in its order; with an epilogue's vector and tensor where it has one.
inline void Compute(const PixelShuffleArguments& c) {
  const int b = c.block, h = c.to_space ? c.h * b : c.h, w = c.to_space ? c.w * b : c.w,
            channels = c.to_space ? c.c : c.c * b * b;
  for (int64_t row = 0; row < int64_t{c.n} * h * w; ++row) {
    const int64_t n = row / (h * w);
    const int p = row / w % h, q = row % w;
    for (int k = 0; k < channels; ++k) {
      int64_t pixel = (n * c.h + p / b) * c.w + q / b;
      int channel = c.by_channel ? (k * b + p % b) * b + q % b : (p % b * b + q % b) * c.c + k;
      if (!c.to_space) {
        const int of_block = c.by_channel ? k % (b * b) : k / c.c;
        pixel = ((n * c.h + p) * b + of_block / b) * c.w * b + q * b + of_block % b;
        channel = c.by_channel ? k / (b * b) : k % c.c;
      }
      const float x = static_cast<const float*>(c.x)[pixel * c.x_pitch + channel];
      static_cast<float*>(c.y)[row * c.y_pitch + k] =
          c.epilogue.tensors[0] ? Finish(c.epilogue, x, row, k) : x;
    }
  }
}

// Bilinear, without aligned corners, zeros outside.
inline void Compute(const GridSampleArguments& c) {
  const auto *x = static_cast<const float*>(c.x), *grid = static_cast<const float*>(c.grid);
  const auto* weights = static_cast<const float*>(c.weights);
  const int points = c.levels * c.points;
  for (int64_t unit = 0; unit < int64_t{c.n} * c.queries * c.heads; ++unit) {
    const int64_t row = unit / c.heads, n = row / c.queries, head = unit % c.heads * c.size;
    for (int k = 0; k < c.size; ++k) {
      float sum = 0;
      for (int i = 0; i < points; ++i) {
        const SampledLevel& level = c.level[i / c.points];
        const float *at = grid + 2 * (unit * points + i), w = ((at[0] + 1) * level.w - 1) / 2,
                    h = ((at[1] + 1) * level.h - 1) / 2;
        for (int corner = 0; corner < 4; ++corner) {
          const float r = std::floor(h) + corner / 2, s = std::floor(w) + corner % 2;
          if (r < 0 || s < 0 || r >= level.h || s >= level.w) continue;
          const int64_t pixel = n * c.rows + level.first + int64_t(r) * level.w + int64_t(s);
          sum += (1 - std::abs(h - r)) * (1 - std::abs(w - s)) *
                 (weights ? weights[unit * points + i] : 1) * x[pixel * c.x_pitch + head + k];
        }
      }
      static_cast<float*>(c.y)[row * c.y_pitch + head + k] = sum;
    }
  }
}

inline void Compute(const ElementwiseArguments& c) {
  const auto* x = static_cast<const float*>(c.x);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int k = 0; k < c.channels; ++k)
      static_cast<float*>(c.y)[row * c.y_pitch + k] =
          Finish(c.epilogue, x[row * c.x_pitch + k], row, k);
  }
}

// Both activations are LeakyReLU, with slopes of their own; a tensor is added behind them.
inline void Compute(const SqueezeExciteArguments& a) {
  const auto *x = static_cast<const float*>(a.x), *squeeze = static_cast<const float*>(a.squeeze);
  const auto* excite = static_cast<const float*>(a.excite);
  const auto leaky = [](float value, float slope) { return value > 0 ? value : slope * value; };
  for (int n = 0; n < a.n; ++n) {
    std::vector<float> mean(a.channels), squeezed(a.squeeze_bias, a.squeeze_bias + a.squeezed);
    const float* image = x + int64_t{n} * a.pixels * a.x_pitch;
    for (int p = 0; p < a.pixels; ++p) {
      for (int c = 0; c < a.channels; ++c) mean[c] += image[p * a.x_pitch + c] / a.pixels;
    }
    for (int s = 0; s < a.squeezed; ++s) {
      for (int c = 0; c < a.channels; ++c) squeezed[s] += squeeze[s * a.channels + c] * mean[c];
      squeezed[s] = leaky(squeezed[s], a.step_params[0]);
    }
    for (int c = 0; c < a.channels; ++c) {
      float gate = a.excite_bias[c];
      for (int s = 0; s < a.squeezed; ++s) gate += excite[c * a.squeezed + s] * squeezed[s];
      gate = leaky(gate, a.step_params[1]);
      for (int p = 0; p < a.pixels; ++p) {
        const int64_t pixel = int64_t{n} * a.pixels + p;
        const auto* sum = static_cast<const float*>(a.epilogue.tensors[0]);
        static_cast<float*>(a.y)[pixel * a.y_pitch + c] =
            gate * image[p * a.x_pitch + c] +
            (sum ? sum[pixel * a.epilogue.tensor_pitch[0] + c] : 0);
      }
    }
  }
}

// A value of the row that a token's index names; 0 where there is no such row.
inline double Embedded(const Embedding& e, int64_t sequence, int64_t token, int columns, int c) {
  const int64_t place = sequence * e.sequence_pitch + token * e.token_pitch;
  int64_t index = e.wide ? static_cast<const int64_t*>(e.indices)[place]
                         : static_cast<const int32_t*>(e.indices)[place];
  if (index < 0) index += e.rows;
  if (index < 0 || index >= e.rows) return 0;
  return static_cast<const float*>(e.table)[index * columns + c];
}

inline void Compute(const NormArguments& a) {
  const EpilogueArguments& e = a.epilogue;
  for (int64_t row = 0; row < a.rows; ++row) {
    std::vector<double> s(a.columns);
    double mean = 0, variance = 0;
    int64_t of_x = row, of_residual = row;
    if (a.tokens > 0) {  // x has no row where a token is one of the prefix
      of_residual = row % a.tokens;
      of_x = row / a.tokens * (a.tokens - a.prefix) + of_residual - a.prefix;
    }
    for (int c = 0; c < a.columns; ++c) {
      for (int t = 0; t < a.tables; ++t)
        s[c] += Embedded(a.embeddings[t], row / a.tokens, of_residual, a.columns, c);
      if (!a.tables && of_residual >= a.prefix)
        s[c] = static_cast<const float*>(a.x)[of_x * a.x_pitch + c];
      if (e.tensors[0])
        s[c] += static_cast<const float*>(e.tensors[0])[of_residual * e.tensor_pitch[0] + c];
      if (a.sum) static_cast<float*>(a.sum)[row * a.columns + c] = static_cast<float>(s[c]);
      if (a.centered) mean += s[c] / a.columns;
    }
    for (double value : s) variance += (value - mean) * (value - mean) / a.columns;
    for (int c = 0; c < a.columns; ++c) {
      double y = (s[c] - mean) / std::sqrt(variance + a.epsilon);
      if (e.vectors[0]) y *= e.vectors[0][c];
      if (e.vectors[1]) y += e.vectors[1][c];
      static_cast<float*>(a.y)[row * a.y_pitch + c] = static_cast<float>(y);
    }
  }
}

// Each head as a row of its own, whose gamma and beta are those of its columns.
inline void Compute(const HeadNormArguments& a) {
  for (int64_t token = 0; token < a.rows / a.heads; ++token) {
    float* const y = static_cast<float*>(a.y) + token * a.y_pitch;
    for (int h = 0; h < a.heads; ++h) {
      NormArguments head = a;
      head.rows = 1;
      head.x = static_cast<const float*>(a.x) + token * a.x_pitch + a.begin + h * a.head_pitch;
      head.y = y + h * a.columns;
      for (const float*& vector : head.epilogue.vectors)
        if (vector) vector += h * a.columns;
      Compute(head);
    }
    if (a.epilogue.rotation.table) Rotate(a.epilogue.rotation, y, token);
  }
}

// The norm of gate * x in fp32, behind which each sequence has a scale and a shift.
inline void Compute(const ModulatedNormArguments& a) {
  const auto of = [&](const void* vectors, int64_t row, int c) {
    return static_cast<const float*>(vectors)[row / a.tokens * a.columns + c];
  };
  std::vector<float> x(a.rows * a.columns);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int c = 0; c < a.columns; ++c)
      x[row * a.columns + c] =
          static_cast<const float*>(a.x)[row * a.x_pitch + c] * (a.gate ? of(a.gate, row, c) : 1.f);
  }
  NormArguments plain = a;
  plain.x = x.data(), plain.x_pitch = a.columns, plain.tokens = 0;
  Compute(plain);
  for (int64_t row = 0; row < a.rows; ++row) {
    float* const y = static_cast<float*>(a.y) + row * a.y_pitch;
    for (int c = 0; c < a.columns; ++c)
      y[c] = y[c] * (1.f + of(a.scale, row, c)) + of(a.shift, row, c);
  }
}

// A value of an image's vector; 0 where there is none.
inline float OfImage(const GroupNormArguments& a, const void* vectors, int n, int c) {
  return vectors ? static_cast<const float*>(vectors)[int64_t{n} * a.channels + c] : 0.f;
}

inline void Compute(const GroupNormArguments& a) {
  const int size = a.channels / a.groups;
  for (int n = 0; n < a.n; ++n) {
    const int64_t first = int64_t{n} * a.pixels;
    for (int begin = 0; begin < a.channels; begin += size) {
      const double count = double(a.pixels) * size;
      double mean = 0, variance = 0;
      const auto input = [&](int p, int c) {
        return static_cast<const float*>(a.x)[(first + p) * a.x_pitch + c] +
               double(OfImage(a, a.before, n, c));
      };
      for (int i = 0; i < a.pixels * size; ++i) mean += input(i / size, begin + i % size) / count;
      for (int i = 0; i < a.pixels * size; ++i)
        variance += std::pow(input(i / size, begin + i % size) - mean, 2) / count;
      for (int i = 0; i < a.pixels * size; ++i) {
        const int p = i / size, c = begin + i % size;
        double y = (input(p, c) - mean) / std::sqrt(variance + a.epsilon);
        y = (y * a.gamma[c] + a.beta[c]) * (1.0 + OfImage(a, a.scale, n, c));
        y += OfImage(a, a.shift, n, c);
        static_cast<float*>(a.y)[(first + p) * a.y_pitch + c] =
            a.epilogue.params[0] ? Finish(a.epilogue, static_cast<float>(y), first + p, c)
                                 : static_cast<float>(y);
      }
    }
  }
}

// Elements of a view from its first one to position s of batch b.
template <class View>
int64_t Position(const AttentionArguments& a, const View& view, int b, int s) {
  const Windows& w = a.windows;
  if (w.height == 0) return b * view.batch + s * view.row;
  const int across = w.width / w.window_width, count = w.height / w.window_height * across;
  const int y = b % count / across * w.window_height + s / w.window_width + w.shift_y;
  const int x = b % across * w.window_width + s % w.window_width + w.shift_x;
  return b / count * view.batch + (y % w.height * w.width + x % w.width) * view.row;
}

inline bool Excluded(const AttentionArguments& a, int i, int j, int64_t at) {
  const int64_t distance = int64_t{j} - i - a.shift;
  if (distance < a.first || distance > a.last) return true;
  const auto* flags = static_cast<const bool*>(a.mask.data);
  return (a.mask.kind == Masking::kKept && !flags[at]) ||
         (a.mask.kind == Masking::kDropped && flags[at]);
}

// Scores of query i of head h, -inf for excluded keys.
inline std::vector<double> Scores(const AttentionArguments& a, int b, int h, int i) {
  const auto at = [&](const HeadsView& view, int h, int s) {
    return static_cast<const float*>(view.data) + Position(a, view, b, s) + h * view.head;
  };
  std::vector<double> scores(a.keys);
  for (int j = 0; j < a.keys; ++j) {
    const float *q = at(a.q, h, i), *k = at(a.k, h / (a.heads / a.key_heads), j);
    for (int d = 0; d < a.size; ++d) scores[j] += double{q[d]} * k[d] * a.scale;
    const ScoreMask& mask = a.mask;
    const int batch = mask.period ? b % mask.period : b;
    const int64_t value = batch * mask.batch + h * mask.head + i * mask.query + j * mask.key;
    if (mask.kind == Masking::kAdded) scores[j] += static_cast<const float*>(mask.data)[value];
    if (Excluded(a, i, j, value)) scores[j] = -std::numeric_limits<double>::infinity();
  }
  return scores;
}

// exp(score - the largest), over their sum; without any key as the mode says.
inline std::vector<double> Softmax(std::vector<double> scores, Masked masked) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  if (std::isinf(largest)) {
    const double plain = 1.0 / static_cast<double>(scores.size()),
                 nan = std::numeric_limits<double>::quiet_NaN();
    const double answer = masked == Masked::kPlain ? plain : masked == Masked::kZero ? 0 : nan;
    return std::vector<double>(scores.size(), answer);
  }
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
  return scores;
}

inline void Compute(const AttentionArguments& a) {
  for (int64_t row = 0; row < int64_t{a.batch} * a.heads * a.queries; ++row) {
    const int b = row / a.queries / a.heads, h = row / a.queries % a.heads, i = row % a.queries,
              shared = h / (a.heads / a.key_heads);
    const std::vector<double> weights = Softmax(Scores(a, b, h, i), a.masked);
    float* y = static_cast<float*>(a.y.data) + Position(a, a.y, b, i) + h * a.y.head;
    for (int e = 0; e < a.value_size; ++e) {
      double sum = 0;
      for (int j = 0; j < a.keys; ++j)
        sum += weights[j] *
               static_cast<const float*>(a.v.data)[Position(a, a.v, b, j) + shared * a.v.head + e];
      y[e] = static_cast<float>(sum);
    }
  }
}

// A uint8 code of a sum of uint8 by int8: bias, and a residual of codes if there is one. With
// `values` a residual is of float32, and so is the result, which is written there, too.
inline uint8_t Code(const EpilogueArguments& e, int32_t sum, int64_t row, int64_t channel,
                    float* values) {
  float x = static_cast<float>(sum) * (e.params[0] * e.vectors[0][channel]) + e.vectors[1][channel];
  const float* next = e.params + 1;
  if (values) {
    if (e.tensors[0])
      x += static_cast<const float*>(e.tensors[0])[row * e.tensor_pitch[0] + channel];
    *values = x;
  } else if (e.tensors[0]) {
    const auto* codes = static_cast<const uint8_t*>(e.tensors[0]);
    x += (float(codes[row * e.tensor_pitch[0] + channel]) - next[1]) * next[0];
    next += 2;
  }
  return static_cast<uint8_t>(std::clamp(std::nearbyint(x / next[0]) + next[1], 0.f, 255.f));
}

inline void Compute(const QuantizedGemmArguments& g) {
  const auto* a = static_cast<const uint8_t*>(g.a);
  const auto* b = static_cast<const int8_t*>(g.b);
  for (int64_t m = 0; m < g.m; ++m) {
    for (int64_t n = 0; n < g.n; ++n) {
      int32_t sum = g.offsets.values ? g.offsets.values[n] : 0;
      for (int64_t k = 0; k < g.k; ++k) sum += int32_t{a[m * g.lda + k]} * b[n * g.ldb + k];
      auto* values = static_cast<float*>(g.values);
      static_cast<uint8_t*>(g.d)[m * g.ldd + n] =
          Code(g.epilogue, sum, m, n, values ? values + m * g.n + n : nullptr);
    }
  }
}

// The class of an output along an axis (docs/decisions/quantized.md), and the number of classes.
struct PixelClass {
  int at = 0, count = 1;

  PixelClass(int output, int outputs, int size, int taps, int stride, int pad, int dilation) {
    int in_front = 0, behind = 0;
    for (int p = 0; p < outputs; ++p) {
      in_front += p * stride < pad;
      behind += p * stride - pad + dilation * (taps - 1) > size - 1;
    }
    const bool each = in_front + behind >= outputs;
    count = each ? outputs : in_front + 1 + behind;
    at = each || output < in_front   ? output
         : output < outputs - behind ? in_front
                                     : in_front + 1 + output - (outputs - behind);
  }
};

inline void Compute(const QuantizedConvArguments& c) {
  RememberPads(c);
  const auto* x = static_cast<const uint8_t*>(c.x);
  const auto* filter = static_cast<const int8_t*>(c.filter);
  for (int64_t row = 0; row < int64_t{c.n} * c.p * c.q; ++row) {
    const int p = row / c.q % c.p, q = row % c.q, n = row / (c.p * c.q);
    const PixelClass h(p, c.p, c.h, c.r, c.stride_h, c.pad_top, c.dilation_h),
        w(q, c.q, c.w, c.s, c.stride_w, c.pad_left, c.dilation_w);
    const int pixel_class = c.offsets.classes == h.count * w.count ? h.at * w.count + w.at : 0;
    for (int k = 0; k < c.k; ++k) {
      int32_t sum = c.offsets.values ? c.offsets.values[int64_t{pixel_class} * c.k + k] : 0;
      ForEachTap(c, c.r, c.s, p, q, [&](int y, int z, int r, int s) {
        const uint8_t* from = x + ((int64_t{n} * c.h + y) * c.w + z) * c.x_pitch;
        const int8_t* weights = filter + ((int64_t{k} * c.r + r) * c.s + s) * c.c;
        for (int i = 0; i < c.c; ++i) sum += int32_t{from[i]} * weights[i];
      });
      auto* values = static_cast<float*>(c.values);
      static_cast<uint8_t*>(c.y)[row * c.y_pitch + k] =
          Code(c.epilogue, sum, row, k, values ? values + row * c.k + k : nullptr);
    }
  }
}

// Rows of a product, else batches, images or sequences: what a kernel counts.
inline int64_t Rows(const GemmArguments& a) { return a.a_stride || a.b_stride ? a.batches : a.m; }
inline int64_t Rows(const GatedArguments& a) { return a.m; }
inline int64_t Rows(const QuantizedGemmArguments& a) { return a.m; }
inline int64_t Rows(const ChainArguments& a) { return a.m; }
inline int64_t Rows(const ElementwiseArguments& a) { return a.rows; }
inline int64_t Rows(const NormArguments& a) { return a.tokens ? a.rows / a.tokens : a.rows; }
inline int64_t Rows(const ModulatedNormArguments& a) { return a.rows / a.tokens; }
inline int64_t Rows(const HeadNormArguments& a) { return a.rows / a.heads; }
inline int64_t Rows(const AttentionArguments& a) { return a.batch; }
inline int64_t Rows(const ConvChainArguments& a) { return a.conv.n; }
template <class Images>
int64_t Rows(const Images& a) {
  return a.n;
}

template <class Arguments>
struct HostKernel {
  Kernel kernel;

  HostKernel(const char* epilogue, int shared_memory, uint32_t at_launch,
             const int64_t (&row)[kConfigWidth], int element, int output)
      : kernel{epilogue,
               element,
               output,
               {},
               at_launch,
               shared_memory,
               [] { return prepare_error; },
               Check,
               [](const void*, const int64_t*) -> size_t { return 0; },
               Run} {
    std::copy(std::begin(row), std::end(row), kernel.config);
    RegisterKernel(&kernel);
  }

  static const char* Check(const void* arguments) {
    return Rows(*static_cast<const Arguments*>(arguments)) > most_rows
               ? "an extent exceeds the test's"
               : nullptr;
  }

  static const char* Run(const void* arguments, const Launch& launch) {
    ++launches;
    last_max_m = launch.config[kMaxM];
    if (!launch_error) Compute(*static_cast<const Arguments*>(arguments));
    return launch_error;
  }
};

}  // namespace onnxbolt::host
