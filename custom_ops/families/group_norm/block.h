// One block's part of a normalization of groups, step by step.
#pragma once
#include "cutlass/array.h"
#include "epilogue/chain.h"
#include "families/group_norm/moments.h"
#include "families/group_norm/plan.h"
#include "runtime/cluster.h"

namespace onnxbolt {
namespace group_norm {

constexpr int kWarp = 32;

struct Params : GroupNormArguments {
  Plan plan;
  float* handed;  // from the first kernel to the second; not used where one kernel does all
};

// The moments of the threads of a team of `lanes` neighbours, a power of two up to 32: the same
// bits in all of them. Whole warps call it. Of two halves the lower one is always the first.
__device__ inline Moments CombinedOverLanes(Moments own, float count, int lanes) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    const Moments other{__shfl_xor_sync(0xffffffff, own.mean, distance),
                        __shfl_xor_sync(0xffffffff, own.squares, distance)};
    const float other_count = __shfl_xor_sync(0xffffffff, count, distance);
    const bool upper = threadIdx.x & distance;
    own =
        upper ? Combined(other, other_count, own, count) : Combined(own, count, other, other_count);
    count += other_count;
  }
  return own;
}

// `Chain` computes y of the normalized values.
template <class Element, class Output, class Chain, int Width, int Threads>
struct Block {
  // pixels that a thread has under way, for its moments and for y: registers hold the operands of
  // long epilogues as well
  static constexpr int kBatch = 4,
                       kBatchOfY = kBatch / (1 + (Chain::kVectors + Chain::kTensors) / 2);
  using Access = cutlass::AlignedArray<Element, Width>;
  using Result = cutlass::AlignedArray<Output, Width>;

  const Params& params;
  const Plan& plan;
  float* const shared;
  int rank, image;             // among the blocks of a part; of the batch
  int first_channel, vectors;  // the block's part: its accesses to a pixel
  int first_pixel, pixels;     // the block's
  int lanes, rows, lane, row;  // threads: vectors of channels x rows of pixels

  __device__ Block(const Params& params, float* shared)
      : params(params), plan(params.plan), shared(shared) {
    const int unit = blockIdx.x / plan.blocks, part = unit % plan.parts;
    rank = blockIdx.x - unit * plan.blocks, image = unit / plan.parts;
    first_channel = part * plan.part;
    vectors = min(plan.part, params.channels - first_channel) / Width;
    first_pixel = rank * plan.pixels;
    pixels = max(min(plan.pixels, params.pixels - first_pixel), 0);
    lanes = min(vectors, Threads), rows = Threads / lanes;
    row = threadIdx.x / lanes, lane = threadIdx.x - row * lanes;
  }

  // The moments of the block's pixels, of each group.
  __device__ void measure() {
    for (int first = 0; first < vectors; first += lanes) {
      const int vector = first + lane;
      ChannelMoments<Width> moments;
      if (row < rows && vector < vectors) measure_pixels(vector, moments);
      add_rows(moments);
      if (row == 0 && vector < vectors) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Width; ++j) {
          shared[plan.channels + vector * Width + j] = moments.mean[j];
          shared[plan.channels + plan.part + vector * Width + j] = moments.squares[j];
        }
      }
      __syncthreads();
    }
    const auto channel = [&](int group, int i) {
      const int at = plan.channels + group * plan.group + i;
      return Moments{shared[at], shared[at + plan.part]};
    };
    const auto count = [&](int) { return float(pixels); };
    combine(plan.group, channel, count, [&](int group, const Moments& moments) {
      shared[plan.own + 2 * group] = moments.mean;
      shared[plan.own + 2 * group + 1] = moments.squares;
    });
    __syncthreads();
  }

  // Writes the block's moments for the kernel behind.
  __device__ void hand_on() const {
    for (int i = threadIdx.x; i < 2 * groups(); i += Threads)
      params.handed[handed_at(i / 2, rank) + i % 2] = shared[plan.own + i];
  }

  // Combines the moments of all blocks of the part, as the kernel before wrote them.
  __device__ void take_over() {
    combine_blocks([&](int group, int block) {
      const float* from = params.handed + handed_at(group, block);
      return Moments{from[0], from[1]};
    });
  }

  // Combines the moments of all blocks of the part, which are a cluster.
  __device__ void exchange() {
    combine_blocks([&](int group, int block) {
      const float* own = shared + plan.own + 2 * group;
      if (plan.blocks == 1) return Moments{own[0], own[1]};
      return Moments{LoadFromBlock(own, block), LoadFromBlock(own + 1, block)};
    });
  }

  // Writes y of the block's pixels.
  __device__ void apply() const {
    if (row >= rows) return;
    for (int vector = lane; vector < vectors; vector += lanes) apply_vector(vector);
  }

 private:
  // The numbers by which a thread normalizes its channels.
  struct Factors {
    float center[Width], factor[Width], summand[Width];
  };

  __device__ int groups() const { return vectors * Width / plan.group; }

  __device__ int64_t handed_at(int group, int block) const {
    const int64_t whole = int64_t(image) * params.groups + first_channel / plan.group + group;
    return 2 * (whole * plan.blocks + block);
  }

  __device__ int pixels_of(int block) const {
    return max(min(plan.pixels, params.pixels - block * plan.pixels), 0);
  }

  // Calls store(group, moments) with the moments of each group: those of its `length` parts
  // part(group, i), each of count(i) values. A team of threads shares a group.
  template <class Part, class Count, class Store>
  __device__ void combine(int length, const Part& part, const Count& count, const Store& store) {
    int team = 1;
    while (team < kWarp && team < length) team *= 2;
    const int own = threadIdx.x % team, teams = Threads / team;
    for (int first = 0; first < groups(); first += teams) {
      const int group = first + threadIdx.x / team;
      Moments moments{};
      float values = 0.f;
      for (int i = own; group < groups() && i < length; i += team) {
        moments = Combined(moments, values, part(group, i), count(i));
        values += count(i);
      }
      moments = CombinedOverLanes(moments, values, team);
      if (group < groups() && own == 0) store(group, moments);
    }
  }

  // Mean and factor of each group, of all blocks' moments part(group, block).
  template <class Part>
  __device__ void combine_blocks(const Part& part) {
    const float share = 1.f / (float(params.pixels) * float(plan.group));
    const auto count = [&](int block) { return float(pixels_of(block)) * float(plan.group); };
    combine(plan.blocks, part, count, [&](int group, const Moments& moments) {
      shared[plan.groups + 2 * group] = moments.mean;
      shared[plan.groups + 2 * group + 1] = rsqrtf(moments.squares * share + params.epsilon);
    });
    __syncthreads();
  }

  // Pixels row, row + rows, .. of one vector of channels.
  __device__ void measure_pixels(int vector, ChannelMoments<Width>& moments) const {
    float before[Width];
    load_of_image(params.before, vector, before);
    for (int first = row; first < pixels; first += kBatch * rows) {
      const int valid = min((pixels - first + rows - 1) / rows, kBatch);
      Access batch[kBatch];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        batch[i].clear();
        if (i < valid) batch[i] = *x_at(first + i * rows, vector);
      }
      float values[kBatch][Width];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (plan.kept && i < valid) *kept_at(first + i * rows, vector) = batch[i];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Width; ++j) values[i][j] = float(batch[i][j]) + before[j];
      }
      moments.add(values, valid);
    }
  }

  // The first row's threads get the moments of all rows. Whole blocks call it.
  __device__ void add_rows(ChannelMoments<Width>& moments) {
    int span = 1;
    while (span < rows) span *= 2;
    for (; span > 1; span /= 2) {
      const int half = span / 2;
      if (row >= half && row < min(span, rows)) {
        float* const to = shared + (row - half) * lanes + lane;
        to[0] = moments.count;
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Width; ++j) {
          to[(1 + j) * plan.exchange] = moments.mean[j];
          to[(1 + Width + j) * plan.exchange] = moments.squares[j];
        }
      }
      __syncthreads();
      if (row < half && row + half < min(span, rows)) {
        const float* const from = shared + row * lanes + lane;
        moments.add(from[0], [&](int i) { return from[(1 + i) * plan.exchange]; });
      }
      __syncthreads();
    }
  }

  // The values of the image's channels of one access; zeros where there are none.
  __device__ void load_of_image(const void* values, int vector, float (&loaded)[Width]) const {
    Access access;
    access.clear();
    if (values) {
      const int64_t place = int64_t(image) * params.channels + first_channel + vector * Width;
      access = *reinterpret_cast<const Access*>(static_cast<const Element*>(values) + place);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j) loaded[j] = float(access[j]);
  }

  __device__ Factors factors_of(int vector) const {
    Factors factors;
    float scale[Width];
    load_of_image(params.before, vector, factors.center);
    load_of_image(params.scale, vector, scale);
    load_of_image(params.shift, vector, factors.summand);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j) {
      const int channel = vector * Width + j;
      const float* const group = shared + plan.groups + 2 * (channel / plan.group);
      const float gamma = params.gamma[first_channel + channel],
                  beta = params.beta[first_channel + channel];
      factors.center[j] = group[0] - factors.center[j];
      factors.factor[j] = group[1] * gamma * (1.f + scale[j]);
      factors.summand[j] += beta * (1.f + scale[j]);
    }
    return factors;
  }

  __device__ void apply_vector(int vector) const {
    const Factors factors = factors_of(vector);
    const int channel = first_channel + vector * Width;
    typename Chain::template Operands<Width> operands;
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < Chain::kVectors; ++v) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < Width; ++j)
        operands.vectors[v][j] = params.epilogue.vectors[v][channel + j];
    }
    for (int first = row; first < pixels; first += kBatchOfY * rows) {
      Access x[kBatchOfY], tensors[kBatchOfY][Chain::kTensors > 0 ? Chain::kTensors : 1];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatchOfY; ++i) {
        const int pixel = first + i * rows;
        if (pixel >= pixels) break;
        x[i] = plan.kept ? *kept_at(pixel, vector) : *x_at(pixel, vector);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < Chain::kTensors; ++t) tensors[i][t] = *tensor_at(t, pixel, channel);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatchOfY; ++i) {
        const int pixel = first + i * rows;
        if (pixel >= pixels) break;
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < Chain::kTensors; ++t) operands.tensors[t] = widened(tensors[i][t]);
        Result y = result_of(widened(x[i]), factors, operands);
        *y_at(pixel, channel) = y;
      }
    }
  }

  __device__ Result result_of(cutlass::Array<float, Width> values, const Factors& factors,
                              const typename Chain::template Operands<Width>& operands) const {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j)
      values[j] = (values[j] - factors.center[j]) * factors.factor[j] + factors.summand[j];
    Result y;
    static_cast<cutlass::Array<Output, Width>&>(y) =
        Chain::template finish<Output>(values, operands, params.epilogue.params);
    return y;
  }

  __device__ static cutlass::Array<float, Width> widened(const Access& values) {
    cutlass::Array<float, Width> result;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j) result[j] = float(values[j]);
    return result;
  }

  // A block's pixel among those of all images.
  __device__ int64_t pixel_of(int pixel) const {
    return int64_t(image) * params.pixels + first_pixel + pixel;
  }

  __device__ const Access* x_at(int pixel, int vector) const {
    const int64_t place = pixel_of(pixel) * params.x_pitch + first_channel + vector * Width;
    return reinterpret_cast<const Access*>(static_cast<const Element*>(params.x) + place);
  }

  __device__ const Access* tensor_at(int tensor, int pixel, int channel) const {
    const int64_t place = pixel_of(pixel) * params.epilogue.tensor_pitch[tensor] + channel;
    const auto* const values = static_cast<const Element*>(params.epilogue.tensors[tensor]);
    return reinterpret_cast<const Access*>(values + place);
  }

  __device__ Result* y_at(int pixel, int channel) const {
    const int64_t place = pixel_of(pixel) * params.y_pitch + channel;
    return reinterpret_cast<Result*>(static_cast<Output*>(params.y) + place);
  }

  __device__ Access* kept_at(int pixel, int vector) const {
    auto* const kept = reinterpret_cast<Element*>(reinterpret_cast<char*>(shared) + plan.x);
    return reinterpret_cast<Access*>(kept + (pixel * vectors + vector) * Width);
  }
};

}  // namespace group_norm
}  // namespace onnxbolt
