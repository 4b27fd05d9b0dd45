// The answer that kernels are measured against, naively: fp64 sums over tiles in shared memory,
// steps in fp64, decided at run time. Beside each value stands how far a kernel's may be from it,
// by the limits of onnxbolt/verify (docs/accuracy.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

#include "ops/conv/arguments.h"
#include "profiler/problem.h"
#include "runtime/elements.h"

namespace onnxbolt {
namespace profiler {
namespace {

template <class Function>
void WithType(int type, const Function& function) {
  switch (type) {
    case kTypeF32:
      return function(float{});
    case kTypeF16:
      return function(__half{});
    case kTypeBF16:
      return function(__nv_bfloat16{});
    default:
      throw Failure("the profiler knows no element type " + std::to_string(type));
  }
}

// Codes as well, which are multiplied, filled in and compared.
template <class Function>
void WithAnyType(int type, const Function& function) {
  switch (type) {
    case kTypeI8:
      return function(int8_t{});
    case kTypeU8:
      return function(uint8_t{});
    case kTypeE4M3:
      return function(__nv_fp8_e4m3{});
    default:
      return WithType(type, function);
  }
}

// The type of the weights by which a type is multiplied.
template <class Element>
using WeightType = std::conditional_t<std::is_same_v<Element, uint8_t>, int8_t, Element>;

constexpr int kTile = 32, kThreadRows = 8, kPerThread = kTile / kThreadRows;

// x at output pixel `row` and `k`, which counts filter positions and within them channels; of codes
// the difference from the `zero` point; zero outside of the image.
template <class Element>
__device__ float Activation(const ConvArguments& conv, float zero, int64_t row, int64_t k) {
  if (row >= int64_t(conv.n) * conv.p * conv.q || k >= int64_t(conv.r) * conv.s * conv.c)
    return 0.f;
  const int channel = k % conv.c, tap = k / conv.c, q = row % conv.q;
  const int64_t pq = row / conv.q;
  const int h = int(pq % conv.p) * conv.stride_h - conv.pad_top + tap / conv.s * conv.dilation_h;
  const int w = q * conv.stride_w - conv.pad_left + tap % conv.s * conv.dilation_w;
  if (h < 0 || h >= conv.h || w < 0 || w >= conv.w) return 0.f;
  if (conv.x_nchw) {
    const int64_t plane = pq / conv.p * conv.c + channel;
    return float(Element(static_cast<const float*>(conv.x)[(plane * conv.h + h) * conv.w + w]));
  }
  const int64_t pixel = (pq / conv.p * conv.h + h) * conv.w + w;
  return float(static_cast<const Element*>(conv.x)[pixel * conv.x_pitch + channel]) - zero;
}

// The error of a value of x, for a layer behind others, which is a product of rows.
__device__ float ErrorOf(const ConvArguments& conv, const float* errors, int64_t row, int64_t k) {
  return errors && row < int64_t(conv.n) * conv.p * conv.q && k < conv.c ? errors[row * conv.c + k]
                                                                         : 0.f;
}

// A second product that the epilogue of a channel needs: the other half of a gated one, whose rows
// of weights stand in turns of 8, or the other column of a pair that is rotated.
enum class Second { kNone, kHalf, kNeighbour };

// The weight of a channel; of the second product if `second` is not kNone.
template <class Element>
__device__ float Weight(const ConvArguments& conv, int channel, int64_t k, bool gated = false,
                        Second second = Second::kNone) {
  const int64_t depth = int64_t(conv.r) * conv.s * (conv.c / conv.groups);
  if (second == Second::kNeighbour) channel ^= 1;
  const int64_t row =
      gated ? channel / 8 * 16 + (second == Second::kHalf) * 8 + channel % 8 : channel;
  return channel < conv.k && k < depth
             ? float(static_cast<const WeightType<Element>*>(conv.filter)[row * depth + k])
             : 0.f;
}

// The sums of one output's products.
struct Sums {
  double value = 0;
  float magnitude = 0, carried = 0;  // sums of |x w|, and of |w| times the error of x

  __device__ void Add(float x, float w, float x_error) {
    value += double(x) * w, magnitude += fabsf(x * w), carried += x_error * fabsf(w);
  }
};

__device__ Bounded Multiplied(const Bounded& x, const Bounded& y, float rounding) {
  const double value = x.value * y.value;
  return {value,
          fabs(x.value) * y.error + (fabs(y.value) + y.error) * x.error + rounding * fabs(value)};
}

// The column of a pair that `x` and the other column are rotated to.
template <class Element>
__device__ Bounded Rotated(const Bounded& x, const Bounded& other,
                           const RotationArguments& rotation, double rounding, int64_t row,
                           int channel) {
  if (channel >= rotation.columns) return x;
  const Element* pair = static_cast<const Element*>(rotation.table) +
                        (rotation.first + row) % rotation.rows * rotation.width +
                        channel % rotation.width / 2 * 2;
  const float sign = channel % 2 ? 1.f : -1.f, turn[] = {float(pair[0]), sign * float(pair[1])};
  const double y = ReferenceStep(kRotate, x.value, other.value, turn);
  return {y, fabs(turn[0]) * x.error + fabs(turn[1]) * other.error +
                 rounding * (fabs(turn[0] * x.value) + fabs(turn[1] * other.value) + fabs(y))};
}

// An element of a step's tensor, which is of type Element unless the step names another one.
template <class Element>
__device__ double TensorElement(int code, const void* tensor, int64_t at) {
  switch (code) {
    case kAddF32:
      return static_cast<const float*>(tensor)[at];
    case kAddF16:
      return float(static_cast<const __half*>(tensor)[at]);
    case kAddBF16:
      return float(static_cast<const __nv_bfloat16*>(tensor)[at]);
    default:
      return float(static_cast<const Element*>(tensor)[at]);
  }
}

// `other`: the sums of the second product, where the chain needs one.
template <class Element>
__device__ Bounded ApplyChain(const Chain& chain, const EpilogueArguments& operands,
                              const Sums& sums, const Sums& other, float rounding, int64_t row,
                              int channel) {
  const auto begin = [&](const Sums& of) {
    return Bounded{of.value, chain.accumulation * of.magnitude + of.carried};
  };
  Bounded x = begin(sums), neighbour = begin(other);
  for (int i = 0; i < chain.size; ++i) {
    const Step& step = chain.steps[i];
    double operand = 0;
    if (step.code == kRotate) {
      x = Rotated<Element>(x, neighbour, operands.rotation, rounding, row, channel);
      continue;
    }
    if (chain.rotated && step.kind == OperandKind::kVector)
      neighbour = BoundedStep(step.code, neighbour, operands.vectors[step.operand][channel ^ 1],
                              operands.params + step.param, rounding, step.error);
    if (step.kind == OperandKind::kVector) operand = operands.vectors[step.operand][channel];
    if (step.kind == OperandKind::kTensor)
      operand = TensorElement<Element>(step.code, operands.tensors[step.operand],
                                       row * operands.tensor_pitch[step.operand] + channel);
    if (step.gates()) {
      Bounded half = begin(other);
      half.value += operand, half.error += rounding * fabs(half.value);
      x = Multiplied(x, half, rounding);
      continue;
    }
    x = BoundedStep(step.code, x, operand, operands.params + step.param, rounding, step.error);
  }
  return {x.value, x.error + chain.absolute + chain.relative * fabs(x.value)};
}

struct Output {
  float *values, *errors;

  __device__ void Store(int64_t index, const Bounded& x) const {
    values[index] = float(x.value), errors[index] = float(x.error);
  }
};

// The index in y of output pixel `row` of a channel.
__device__ int64_t OutputIndex(const ConvArguments& conv, int64_t row, int channel) {
  if (!conv.y_nchw) return row * conv.k + channel;
  const int64_t pixels = int64_t(conv.p) * conv.q;
  return (row / pixels * (conv.k - conv.padding) + channel) * pixels + row % pixels;
}

// One block makes kTile pixels of kTile channels, one thread kPerThread pixels of one channel.
template <class Element, Second Other>
__global__ void __launch_bounds__(kTile* kThreadRows)
    ReferenceKernel(const __grid_constant__ ConvArguments conv, const __grid_constant__ Chain chain,
                    float rounding, const float* x_errors, Output output) {
  constexpr int kProducts = Other == Second::kNone ? 1 : 2;
  constexpr bool kGated = Other == Second::kHalf;
  __shared__ float pixels[kTile][kTile + 1], filters[kProducts][kTile][kTile + 1],
      errors[kTile][kTile + 1];
  const int64_t first_row = int64_t(blockIdx.x) * kTile, depth = int64_t(conv.r) * conv.s * conv.c;
  const int first_channel = blockIdx.y * kTile, channel = first_channel + threadIdx.x;
  Sums sums[kProducts][kPerThread];
  for (int64_t k = 0; k < depth; k += kTile) {
    for (int i = threadIdx.y; i < kTile; i += kThreadRows) {
      pixels[i][threadIdx.x] =
          Activation<Element>(conv, chain.zero, first_row + i, k + threadIdx.x);
      for (int product = 0; product < kProducts; ++product)
        filters[product][i][threadIdx.x] = Weight<Element>(conv, first_channel + i, k + threadIdx.x,
                                                           kGated, product ? Other : Second::kNone);
      errors[i][threadIdx.x] = ErrorOf(conv, x_errors, first_row + i, k + threadIdx.x);
    }
    __syncthreads();
    for (int j = 0; j < kTile; ++j) {
      for (int i = 0; i < kPerThread; ++i) {
        const int row = threadIdx.y + i * kThreadRows;
        for (int product = 0; product < kProducts; ++product)
          sums[product][i].Add(pixels[row][j], filters[product][threadIdx.x][j], errors[row][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t row = first_row + threadIdx.y + i * kThreadRows;
    if (row < int64_t(conv.n) * conv.p * conv.q && channel < conv.k - conv.padding)
      output.Store(OutputIndex(conv, row, channel),
                   ApplyChain<Element>(chain, conv.epilogue, sums[0][i], sums[kProducts - 1][i],
                                       rounding, row, channel));
  }
}

// With groups an output channel meets the channels of its group alone, so that there is little to
// share: a thread makes a value. Layers behind others have none.
template <class Element>
__global__ void GroupedReferenceKernel(const __grid_constant__ ConvArguments conv,
                                       const __grid_constant__ Chain chain, float rounding,
                                       Output output) {
  const int per_group = conv.c / conv.groups, depth = conv.r * conv.s * per_group;
  const int64_t count = int64_t(conv.n) * conv.p * conv.q * conv.k;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t row = i / conv.k;
    const int channel = i % conv.k, first = channel / (conv.k / conv.groups) * per_group;
    Sums sums;
    for (int k = 0; k < depth; ++k) {
      const int64_t input = int64_t(k / per_group) * conv.c + first + k % per_group;
      sums.Add(Activation<Element>(conv, chain.zero, row, input), Weight<Element>(conv, channel, k),
               0.f);
    }
    output.Store(i, ApplyChain<Element>(chain, conv.epilogue, sums, sums, rounding, row, channel));
  }
}

// The places of the first pixels of all classes along an axis.
struct FirstPixels {
  const int* at;
  int count;
};

// A thread makes the offset of one class of pixels and one channel.
template <class Element>
__global__ void OffsetKernel(const __grid_constant__ ConvArguments conv, float zero, FirstPixels h,
                             FirstPixels w, int32_t* offsets) {
  const int64_t count = int64_t(h.count) * w.count * conv.k;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int channel = i % conv.k, at = i / conv.k;
    const int top = h.at[at / w.count] * conv.stride_h - conv.pad_top,
              left = w.at[at % w.count] * conv.stride_w - conv.pad_left;
    int64_t sum = 0;
    for (int tap = 0; tap < conv.r * conv.s; ++tap) {
      const int y = top + tap / conv.s * conv.dilation_h, x = left + tap % conv.s * conv.dilation_w;
      if (y < 0 || y >= conv.h || x < 0 || x >= conv.w) continue;
      for (int c = 0; c < conv.c; ++c)
        sum += int64_t(Weight<Element>(conv, channel, int64_t(tap) * conv.c + c));
    }
    offsets[i] = int32_t(-int64_t(zero) * sum);
  }
}

// A thread makes the mean of one channel of one image.
__global__ void MeanKernel(Output of, int64_t count, int pixels, int channels, float accumulation,
                           Output means) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * blockDim.x) {
    Bounded sum{0, 0};
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const int64_t at = (i / channels * pixels + pixel) * channels + i % channels;
      sum.value += of.values[at], sum.error += of.errors[at] + accumulation * fabsf(of.values[at]);
    }
    means.Store(i, {sum.value / pixels, sum.error / pixels});
  }
}

// A thread finds where a channel of a pixel is among the phases.
__global__ void PixelKernel(ConvArguments conv, Output rows, Output of) {
  const PhasedPixels at = conv.pixels;
  const int width = conv.k / conv.groups / at.count(), channels = width * conv.groups;
  const int64_t count = int64_t(conv.n) * at.d * at.height * at.width * channels;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int channel = i % channels, x = i / channels % at.width + at.left;
    const int64_t line = i / channels / at.width;
    const int y = line % at.height + at.top;
    const int64_t slice = line / at.height;
    const int64_t row = (slice / at.d * conv.p + y / at.h) * conv.q + x / at.w;
    const int phase = (slice % at.d * at.h + y % at.h) * at.w + x % at.w,
              column = (channel / width * at.count() + phase) * width + channel % width;
    const int64_t from = row * conv.k + column;
    of.Store(i, {rows.values[from], rows.errors[from]});
  }
}

// The value that kernels of a normalization normalize, as computed in fp32: x plus the residual,
// rounded where it is an output.
template <class Element>
__device__ float NormInput(const NormArguments& norm, bool rounds, int64_t row, int column) {
  const auto at = [&](const void* tensor, int64_t pitch) {
    return float(static_cast<const Element*>(tensor)[row * pitch + column]);
  };
  float value = at(norm.x, norm.x_pitch);
  if (norm.epilogue.tensors[0])
    value += at(norm.epilogue.tensors[0], norm.epilogue.tensor_pitch[0]);
  return rounds ? float(Element(value)) : value;
}

__device__ double WarpSum(double value) {
  for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// A warp makes a row. Errors: those of the sums of the mean and of the squares by `accumulation`,
// that of the mean in each difference, and the steps' own.
template <class Element>
__global__ void NormReferenceKernel(const __grid_constant__ NormArguments norm,
                                    const __grid_constant__ Chain chain, float rounding, Output y,
                                    Output sum) {
  const int lane = threadIdx.x % 32, columns = norm.columns;
  const bool stores = sum.values != nullptr;
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / 32;
  for (int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; row < norm.rows;
       row += warps) {
    double total = 0, magnitude = 0, squares = 0, carried = 0;
    for (int c = lane; c < columns; c += 32) {
      const double value = NormInput<Element>(norm, stores, row, c);
      total += value, magnitude += fabs(value);
    }
    const double mean = norm.centered ? WarpSum(total) / columns : 0;
    const double mean_error = norm.centered ? chain.accumulation * WarpSum(magnitude) / columns : 0;
    const auto difference = [&](int c) {
      const double value = NormInput<Element>(norm, stores, row, c), d = value - mean;
      return Bounded{d, mean_error + rounding * (fabs(value) + fabs(d))};
    };
    for (int c = lane; c < columns; c += 32) {
      const Bounded d = difference(c);
      squares += d.value * d.value, carried += (2 * fabs(d.value) + d.error) * d.error;
    }
    const double variance = WarpSum(squares) / columns, shifted = variance + norm.epsilon;
    const double variance_error = chain.accumulation * variance + WarpSum(carried) / columns;
    const double inverse = 1 / sqrt(shifted), relative = variance_error / shifted + rounding;
    for (int c = lane; c < columns; c += 32) {
      const Bounded d = difference(c);
      Bounded value{d.value * inverse,
                    d.error * inverse + fabs(d.value * inverse) * (relative + rounding)};
      for (int i = 0; i < chain.size; ++i) {
        const Step& step = chain.steps[i];
        if (step.kind == OperandKind::kVector)
          value = BoundedStep(step.code, value, norm.epilogue.vectors[step.operand][c], nullptr,
                              rounding, step.error);
      }
      y.Store(row * columns + c, value);
      if (stores) sum.Store(row * columns + c, {NormInput<Element>(norm, true, row, c), 0});
    }
  }
}

constexpr int kQueryThreads = 256;  // a block makes a query's result

// The sum or the largest of the values of a block's threads.
template <class Combine>
__device__ double BlockReduced(double value, const Combine& combine) {
  __shared__ double values[kQueryThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (int count = kQueryThreads / 2; count > 0; count /= 2) {
    if (threadIdx.x < count)
      values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + count]);
    __syncthreads();
  }
  const double result = values[0];
  __syncthreads();
  return result;
}

// The score of a key, -INFINITY where it is excluded, and its error.
template <class Element>
__device__ Bounded Score(const AttentionArguments& a, int b, int h, int i, int j,
                         float score_error) {
  const auto at = [b](const HeadsView& view, int head, int position) {
    return static_cast<const Element*>(view.data) + b * view.batch + position * view.row +
           head * view.head;
  };
  const Element *q = at(a.q, h, i), *k = at(a.k, h / (a.heads / a.key_heads), j);
  double sum = 0, magnitude = 0;
  for (int d = 0; d < a.size; ++d) {
    const double product = double(float(q[d])) * double(float(k[d]));
    sum += product, magnitude += fabs(product);
  }
  Bounded score{a.scale * sum, a.scale * magnitude * score_error};
  const int64_t distance = int64_t(j) - i - a.shift,
                place = b * a.mask.batch + h * a.mask.head + i * a.mask.query + j * a.mask.key;
  bool excluded = distance < a.first || distance > a.last;
  if (a.mask.kind == Masking::kAdded)
    score.value += a.mask.fp32 ? static_cast<const float*>(a.mask.data)[place]
                               : float(static_cast<const Element*>(a.mask.data)[place]);
  else if (a.mask.kind != Masking::kNone)
    excluded |= static_cast<const bool*>(a.mask.data)[place] != (a.mask.kind == Masking::kKept);
  constexpr double kRoundings = 4 * 0x1p-24;
  excluded |= score.value == -INFINITY;
  return excluded ? Bounded{-INFINITY, 0}
                  : Bounded{score.value, score.error + kRoundings * fabs(score.value)};
}

// A block makes the result of a query. Weights of keys are in `weights`, [blocks, keys]. A weight's
// relative error is at most exp(2 e) - 1, where e is the largest error of a score. A query without
// keys has zeros.
template <class Element>
__global__ void __launch_bounds__(kQueryThreads)
    AttentionReferenceKernel(const __grid_constant__ AttentionArguments a, float accumulation,
                             float score_error, double* weights, Output y) {
  constexpr double kExponential = 8 * 0x1p-21;
  const auto sum_of = [](double one, double other) { return one + other; };
  const auto largest_of = [](double one, double other) { return fmax(one, other); };
  double* const own = weights + int64_t(blockIdx.x) * a.keys;
  for (int64_t row = blockIdx.x; row < int64_t(a.batch) * a.queries * a.heads; row += gridDim.x) {
    const int h = int(row % a.heads), i = int(row / a.heads % a.queries),
              b = int(row / a.heads / a.queries);
    double largest = -INFINITY, error = 0, total = 0;
    for (int j = threadIdx.x; j < a.keys; j += kQueryThreads) {
      const Bounded score = Score<Element>(a, b, h, i, j, score_error);
      own[j] = score.value, largest = fmax(largest, score.value), error = fmax(error, score.error);
    }
    largest = BlockReduced(largest, largest_of), error = BlockReduced(error, largest_of);
    for (int j = threadIdx.x; j < a.keys; j += kQueryThreads)
      total += own[j] = largest == -INFINITY ? 0 : exp(own[j] - largest);
    total = fmax(BlockReduced(total, sum_of), 0x1p-1000);
    const double relative = accumulation + expm1(2 * error) + kExponential;
    for (int e = threadIdx.x; e < a.value_size; e += kQueryThreads) {
      const Element* v = static_cast<const Element*>(a.v.data) + b * a.v.batch +
                         h / (a.heads / a.key_heads) * a.v.head + e;
      double sum = 0, magnitude = 0;
      for (int j = 0; j < a.keys; ++j) {
        const double term = own[j] * float(v[j * a.v.row]);
        sum += term, magnitude += fabs(term);
      }
      y.Store(row * a.value_size + e, {sum / total, relative * magnitude / total});
    }
    __syncthreads();
  }
}

__global__ void BooleanKernel(bool* data, size_t count, bool most) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x)
    data[i] = (i % 16 == 5) != most;
}

// The comparison of all values: sums of squares, of the difference and of the reference, and the
// largest error in parts of its limit.
struct Found {
  double difference, norm;
  unsigned excess;  // bits of a float that is not negative, in the order of the numbers; those of
                    // NaN are larger than all
};

template <class Element>
__global__ void DistanceKernel(const Element* y, Output reference, float unit, float floor,
                               size_t count, Found* found) {
  double difference = 0, norm = 0;
  unsigned excess = 0;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const double expected = reference.values[i], delta = double(float(y[i])) - expected;
    const double limit = reference.errors[i] + unit * fmax(fabs(expected), double(floor));
    excess = max(excess, __float_as_uint(fabsf(float(delta / limit))));
    difference += delta * delta;
    norm += expected * expected;
  }
  for (int lane = 16; lane; lane /= 2) {
    difference += __shfl_down_sync(~0u, difference, lane);
    norm += __shfl_down_sync(~0u, norm, lane);
    excess = max(excess, __shfl_down_sync(~0u, excess, lane));
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&found->difference, difference);
    atomicAdd(&found->norm, norm);
    atomicMax(&found->excess, excess);
  }
}

// A counter's bits, mixed (with the constants that Wellons' hash prospector found): values do not
// depend on the grid.
__device__ uint32_t Mix(uint32_t bits) {
  bits = (bits ^ (bits >> 16)) * 0x7feb352du;
  bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
  return bits ^ (bits >> 16);
}

__device__ float Uniform(uint32_t bits) { return ((bits >> 8) + 0.5f) / 16777216.f; }

// Rounds an operand to a value that a kernel multiplies exactly: TF32 keeps ten bits, and a value
// that has no more is the same however it is rounded.
__device__ void Store(float value, float* to) {
  *to = __uint_as_float(__float_as_uint(value) & 0xffffe000u);
}
template <class Element>
__device__ void Store(float value, Element* to) {
  if constexpr (std::is_integral_v<Element>) {
    constexpr float kLeast = std::is_signed_v<Element> ? -128 : 0, kMost = kLeast + 255;
    *to = Element(rintf(fminf(fmaxf(value, kLeast), kMost)));
  } else {
    *to = Element(value);
  }
}

template <class Element>
__global__ void NormalKernel(Element* data, size_t count, uint32_t seed, float mean,
                             float deviation) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const uint32_t bits = Mix(uint32_t(i) ^ Mix(uint32_t(i >> 32) ^ Mix(seed)));
    const float radius = sqrtf(-2.f * logf(Uniform(bits)));  // Box and Muller
    Store(mean + deviation * radius * cospif(2.f * Uniform(Mix(bits ^ 0x9e3779b9u))), data + i);
  }
}

template <class Element>
__global__ void RoundKernel(Element* data, const float* from, size_t count) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x)
    Store(from[i], data + i);
}

constexpr int kBlocks = 1024, kThreads = 256;

Output OutputOf(const Answer& answer) {
  return {static_cast<float*>(answer.values.get()), static_cast<float*>(answer.errors.get())};
}

}  // namespace

size_t ElementSize(int type) {
  if (type == kTypeBool) return sizeof(bool);
  if (type == kTypeI32) return sizeof(int32_t);
  size_t size = 0;
  WithAnyType(type, [&](auto element) { size = sizeof element; });
  return size;
}

namespace {

bool IsCalled(const char* name, size_t length, const char* text) {
  return std::strlen(name) == length && !std::strncmp(name, text, length);
}

// A further product (PRODUCT in onnxbolt/epilogues/) is no step of a chain: it begins the next
// one. Nor is what makes the result in front of it an output, too (STORE), or of the last result
// its mean (MEAN).
constexpr char kProduct[] = "Gemm", kStore[] = "Store", kMean[] = "Mean";

}  // namespace

Layers ParseLayers(const char* epilogue) {
  Layers layers;
  int params = 0;  // parameters of all layers so far
  for (const char* name = epilogue; *name;) {
    const size_t length = std::strcspn(name, ",");
    if (IsCalled(kStore, length, name)) {
      layers.stores = true;
    } else if (IsCalled(kMean, length, name)) {
      layers.means = true;
    } else if (IsCalled(kProduct, length, name)) {
      if (++layers.count > kMaxProducts)
        throw Failure(std::string("the profiler takes fewer layers than ") + epilogue);
      layers.chains[layers.count - 1].first_param = params;
    } else {
      const auto found =
          std::find_if(std::begin(kStepRows), std::end(kStepRows),
                       [&](const StepRow& row) { return IsCalled(row.name, length, name); });
      Chain& chain = layers.chains[layers.count - 1];
      if (found == std::end(kStepRows) || chain.size == kMaxSteps)
        throw Failure(std::string("the profiler cannot compute the epilogue ") + epilogue);
      const bool vector = found->kind == OperandKind::kVector,
                 tensor = found->kind == OperandKind::kTensor;
      chain.steps[chain.size++] = {found->code, found->kind, vector ? chain.vectors : chain.tensors,
                                   params - chain.first_param};
      const auto type = [&](int f32, int f16, int bf16) {
        const int code = found->code;
        return code == f32 ? kTypeF32 : code == f16 ? kTypeF16 : code == bf16 ? kTypeBF16 : 0;
      };
      if (const int added = type(kAddF32, kAddF16, kAddBF16)) chain.added = added;
      if (const int stored = type(kStoreF32, kStoreF16, kStoreBF16)) chain.stored = stored;
      chain.gated |= chain.steps[chain.size - 1].gates();
      chain.rotated |= found->code == kRotate;
      chain.vectors += vector, chain.tensors += tensor, params += found->params;
      if (chain.vectors > kMaxVectors || chain.tensors > kMaxTensors || params > kMaxParams)
        throw Failure(std::string("kernels take fewer operands than the epilogue ") + epilogue);
    }
    name += length + (name[length] == ',');
  }
  return layers;
}

void FillNormal(void* data, int element, size_t count, uint32_t seed, float mean, float deviation) {
  WithAnyType(element, [&](auto zero) {
    NormalKernel<<<kBlocks, kThreads>>>(static_cast<decltype(zero)*>(data), count, seed, mean,
                                        deviation);
  });
  Check(cudaGetLastError(), "filling an operand");
}

void ComputeReference(const ConvArguments& conv, int element, const Chain& chain, float rounding,
                      const float* x_errors, const Answer& answer) {
  const int64_t rows = int64_t(conv.n) * conv.p * conv.q;
  const dim3 grid(unsigned((rows + kTile - 1) / kTile), (conv.k + kTile - 1) / kTile),
      block(kTile, kThreadRows);
  const auto product = [&](auto zero) {
    if (conv.groups > 1)
      GroupedReferenceKernel<decltype(zero)>
          <<<kBlocks, kThreads>>>(conv, chain, rounding, OutputOf(answer));
    else
      ReferenceKernel<decltype(zero), Second::kNone>
          <<<grid, block>>>(conv, chain, rounding, x_errors, OutputOf(answer));
  };
  if (IsCode(element))
    WithAnyType(element, product);
  else
    WithType(element, [&](auto zero) {
      if (chain.gated)
        ReferenceKernel<decltype(zero), Second::kHalf>
            <<<grid, block>>>(conv, chain, rounding, x_errors, OutputOf(answer));
      else if (chain.rotated)
        ReferenceKernel<decltype(zero), Second::kNeighbour>
            <<<grid, block>>>(conv, chain, rounding, x_errors, OutputOf(answer));
      else
        product(zero);
    });
  Check(cudaGetLastError(), "launching the reference");
  Check(cudaDeviceSynchronize(), "the reference");
}

void ComputeOffsets(const ConvArguments& conv, int element, float zero,
                    const BorderClasses& classes, void* offsets) {
  const size_t bytes = sizeof(int) * (classes.h.size() + classes.w.size());
  const Buffer firsts(bytes);
  int* const h = static_cast<int*>(firsts.get());
  int* const w = h + classes.h.size();
  Check(cudaMemcpy(h, classes.h.data(), sizeof(int) * classes.h.size(), cudaMemcpyDefault),
        "cudaMemcpy");
  Check(cudaMemcpy(w, classes.w.data(), sizeof(int) * classes.w.size(), cudaMemcpyDefault),
        "cudaMemcpy");
  WithAnyType(element, [&](auto type) {
    OffsetKernel<decltype(type)><<<kBlocks, kThreads>>>(
        conv, zero, {h, static_cast<int>(classes.h.size())},
        {w, static_cast<int>(classes.w.size())}, static_cast<int32_t*>(offsets));
  });
  Check(cudaGetLastError(), "launching the offsets");
  Check(cudaDeviceSynchronize(), "the offsets");
}

void ComputeMeans(const ConvArguments& conv, const Answer& values, float accumulation,
                  const Answer& means) {
  const int64_t count = int64_t(conv.n) * conv.k;
  MeanKernel<<<kBlocks, kThreads>>>(OutputOf(values), count, conv.p * conv.q, conv.k, accumulation,
                                    OutputOf(means));
  Check(cudaGetLastError(), "launching the reference's means");
}

void ComputePixels(const ConvArguments& conv, const Answer& rows, const Answer& pixels) {
  PixelKernel<<<kBlocks, kThreads>>>(conv, OutputOf(rows), OutputOf(pixels));
  Check(cudaGetLastError(), "launching the reference's pixels");
  Check(cudaDeviceSynchronize(), "the reference's pixels");
}

void ComputeNorm(const NormArguments& norm, int element, const Chain& chain, float rounding,
                 const Answer& y, const Answer* sum) {
  const Output stored = sum ? OutputOf(*sum) : Output{nullptr, nullptr};
  WithType(element, [&](auto zero) {
    NormReferenceKernel<decltype(zero)>
        <<<kBlocks, kThreads>>>(norm, chain, rounding, OutputOf(y), stored);
  });
  Check(cudaGetLastError(), "launching the reference");
  Check(cudaDeviceSynchronize(), "the reference");
}

void ComputeAttention(const AttentionArguments& attention, int element, float accumulation,
                      float score_error, const Answer& y) {
  const Buffer weights(sizeof(double) * kBlocks * attention.keys);
  WithType(element, [&](auto zero) {
    AttentionReferenceKernel<decltype(zero)><<<kBlocks, kQueryThreads>>>(
        attention, accumulation, score_error, static_cast<double*>(weights.get()), OutputOf(y));
  });
  Check(cudaGetLastError(), "launching the reference");
  Check(cudaDeviceSynchronize(), "the reference");
}

void FillBooleans(bool* data, size_t count, bool most) {
  BooleanKernel<<<kBlocks, kThreads>>>(data, count, most);
  Check(cudaGetLastError(), "filling a mask");
}

void RoundTo(void* data, int element, const float* from, size_t count) {
  WithType(element, [&](auto zero) {
    RoundKernel<<<kBlocks, kThreads>>>(static_cast<decltype(zero)*>(data), from, count);
  });
  Check(cudaGetLastError(), "rounding a layer's result");
}

Distance DistanceFrom(const Answer& reference, const void* y, int output, float unit, float floor,
                      size_t count) {
  const Buffer buffer(sizeof(Found));
  Found* const on_device = static_cast<Found*>(buffer.get());
  Found found;
  Check(cudaMemset(on_device, 0, sizeof found), "cudaMemset");
  WithAnyType(output, [&](auto zero) {
    DistanceKernel<<<kBlocks, kThreads>>>(static_cast<const decltype(zero)*>(y),
                                          OutputOf(reference), unit, floor, count, on_device);
  });
  Check(cudaMemcpy(&found, on_device, sizeof found, cudaMemcpyDefault),
        "comparing with the reference");
  float excess;
  std::memcpy(&excess, &found.excess, sizeof excess);
  const double error = std::sqrt(found.difference) / (found.norm > 0 ? std::sqrt(found.norm) : 1.0);
  return {std::isnan(error) ? INFINITY : error, std::isnan(excess) ? INFINITY : excess};
}

}  // namespace profiler
}  // namespace onnxbolt
