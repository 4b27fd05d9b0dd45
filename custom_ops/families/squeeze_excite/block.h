// One block's part of squeeze-and-excitation, step by step.
#pragma once
#include "epilogue/chain.h"
#include "families/squeeze_excite/rows.h"
#include "ops/squeeze_excite/arguments.h"
#include "runtime/cluster.h"

namespace onnxbolt {
namespace squeeze_excite {

constexpr int kBatch = 8;  // pixels that a thread loads before it adds them

struct Params : SqueezeExciteArguments {
  Plan plan;
};

// A block's threads as lanes (vectors of channels) x rows (of pixels) x images.
struct Threads {
  int lanes, rows, lane, row, image;

  __device__ Threads(int vectors, int images) {
    lanes = max(min(vectors, int(blockDim.x) / images), 1), rows = blockDim.x / (lanes * images);
    const int pixel = threadIdx.x / lanes;
    lane = threadIdx.x - pixel * lanes, image = pixel / rows, row = pixel - image * rows;
  }
};

// One block's work. Channels and images are the block's own unless said otherwise. `Chain` computes
// y of what the gates have scaled.
template <class Element, class Squeeze, class Gate, class Chain, int Width>
struct Block {
  static constexpr int kWeights =
      16 / sizeof(Element);  // to an access along the squeezed channels, which are padded to it
  using Vector = Access<Element, Width>;

  const Params& params;
  int first_channel, channels, first_image, images;
  float *sums, *means, *gates, *shares, *squeezed, *squeeze_bias, *excite_bias;
  Element* kept;

  __device__ Block(const Params& params, float* shared) : params(params) {
    const Plan& plan = params.plan;
    const int rank = plan.blocks > 1 ? ClusterRank() : 0, vectors = params.channels / Width,
              end = (rank + 1) * vectors / plan.blocks;
    first_channel = rank * vectors / plan.blocks * Width;
    channels = end * Width - first_channel;
    sums = shared, means = sums + plan.sums, gates = means + plan.images * plan.vector;
    shares = gates + plan.images * plan.vector, squeezed = shares + plan.images * plan.squeezed;
    squeeze_bias = squeezed + plan.images * plan.squeezed,
    excite_bias = squeeze_bias + plan.squeezed;
    kept = reinterpret_cast<Element*>(excite_bias + plan.vector);
    first_image = blockIdx.x / plan.blocks * plan.images;
    images = min(plan.images, params.n - first_image);
  }

  // Biases are constant, so this may happen while the kernel before still runs.
  __device__ void load_biases() {
    for (int i = threadIdx.x; i < params.squeezed; i += blockDim.x)
      squeeze_bias[i] = params.squeeze_bias[i];
    for (int i = threadIdx.x; i < channels; i += blockDim.x)
      excite_bias[i] = params.excite_bias[first_channel + i];
  }

  // Channels that have no lane wait for another pass.
  __device__ void compute_means() {
    const int vectors = channels / Width;
    const Threads threads(vectors, images);
    const float share = 1.f / float(params.pixels);
    for (int first = 0; first < vectors; first += threads.lanes) {
      const int lane = first + threads.lane;
      if (lane < vectors && threads.image < images)
        sum_pixels(threads.image, lane * Width, threads.row, threads.rows);
      __syncthreads();
      const int count = min(threads.lanes, vectors - first) * Width,
                row_pitch = threads.lanes * Width;
      const auto term = [&](int sum, int row) {
        return sums[(sum / count * threads.rows + row) * row_pitch + sum % count];
      };
      const auto finish = [&](int sum, float total) {
        means[sum / count * params.plan.vector + first * Width + sum % count] = total * share;
      };
      SumRows(images * count, threads.rows, term, finish);
      __syncthreads();
    }
  }

  // This block's share of the squeezed channels: the products with its own channels.
  __device__ void compute_shares() {
    const Matrix<Element, Width> weights{
        static_cast<const Element*>(params.squeeze) + first_channel, params.channels,
        params.squeezed, channels / Width};
    const auto finish = [&](int row, int image, float sum) {
      shares[image * params.squeezed + row] = sum;
    };
    Multiply(weights, means, params.plan.vector, images, finish);
  }

  // All blocks' shares, in the order of their ranks.
  __device__ void compute_squeezed() {
    for (int row = threadIdx.x; row < images * params.squeezed; row += blockDim.x) {
      float sum = squeeze_bias[row % params.squeezed];
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kMostBlocks; ++block) {
        if (block < params.plan.blocks)
          sum += params.plan.blocks > 1 ? LoadFromBlock(shares + row, block) : shares[row];
      }
      squeezed[row] = Squeeze::apply(sum, 0.f, params.step_params);
    }
  }

  __device__ void compute_gates() {
    const Matrix<Element, kWeights> weights{
        static_cast<const Element*>(params.excite) + int64_t(first_channel) * params.squeezed,
        params.squeezed, channels, params.squeezed / kWeights};
    const auto finish = [&](int row, int image, float sum) {
      gates[image * params.plan.vector + row] =
          Gate::apply(sum + excite_bias[row], 0.f, params.step_params + Squeeze::kParams);
    };
    Multiply(weights, squeezed, params.squeezed, images, finish);
  }

  __device__ void apply_gates() {
    const Threads threads(channels / Width, images);
    for (int lane = threads.lane; lane < channels / Width && threads.image < images;
         lane += threads.lanes) {
      gate_pixels(threads.image, lane * Width, threads.row, threads.rows);
    }
  }

 private:
  // `pixel` counts those of all the block's images.
  __device__ const Vector* x_at(int pixel, int channel) const {
    const int64_t place =
        (int64_t(first_image) * params.pixels + pixel) * params.x_pitch + first_channel + channel;
    return reinterpret_cast<const Vector*>(static_cast<const Element*>(params.x) + place);
  }

  __device__ Vector* y_at(int pixel, int channel) const {
    const int64_t place =
        (int64_t(first_image) * params.pixels + pixel) * params.y_pitch + first_channel + channel;
    return reinterpret_cast<Vector*>(static_cast<Element*>(params.y) + place);
  }

  __device__ Vector* kept_at(int pixel, int channel) const {
    return reinterpret_cast<Vector*>(kept + pixel * channels + channel);
  }

  // Pixels row, row + rows, .. of one vector of channels, a batch of them under way at a time.
  __device__ void sum_pixels(int image, int channel, int row, int rows) {
    cutlass::Array<float, Width> sum;
    sum.clear();
    for (int first = row; first < params.pixels; first += kBatch * rows) {
      Vector batch[kBatch];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        batch[i].clear();
        if (first + i * rows < params.pixels)
          batch[i] = *x_at(image * params.pixels + first + i * rows, channel);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (params.plan.x_kept && first + i * rows < params.pixels)
          *kept_at(image * params.pixels + first + i * rows, channel) = batch[i];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Width; ++j) sum[j] += float(batch[i][j]);
      }
    }
    *reinterpret_cast<Access<float, Width>*>(sums + threadIdx.x * Width) = narrowed<float>(sum);
  }

  __device__ void gate_pixels(int image, int channel, int row, int rows) {
    const auto gate = *reinterpret_cast<const Access<float, Width>*>(
        gates + image * params.plan.vector + channel);
#pragma unroll 4
    for (int p = row; p < params.pixels; p += rows) {
      const int pixel = image * params.pixels + p;
      const Vector x = params.plan.x_kept ? *kept_at(pixel, channel) : *x_at(pixel, channel);
      cutlass::Array<float, Width> scaled;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Width; ++i) scaled[i] = float(x[i]) * gate[i];
      Vector y;
      static_cast<cutlass::Array<Element, Width>&>(y) =
          Chain::template finish<Element>(scaled, operands_at(pixel, channel),
                                          params.step_params + Squeeze::kParams + Gate::kParams);
      *y_at(pixel, channel) = y;
    }
  }

  __device__ typename Chain::template Operands<Width> operands_at(int pixel, int channel) const {
    const EpilogueArguments& epilogue = params.epilogue;
    typename Chain::template Operands<Width> operands;
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < Chain::kTensors; ++t) {
      const int64_t row = int64_t(first_image) * params.pixels + pixel;
      const Vector values = *reinterpret_cast<const Vector*>(
          static_cast<const Element*>(epilogue.tensors[t]) + row * epilogue.tensor_pitch[t] +
          first_channel + channel);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Width; ++i) operands.tensors[t][i] = float(values[i]);
    }
    return operands;
  }

  template <class T>
  __device__ static Access<T, Width> narrowed(const cutlass::Array<float, Width>& values) {
    Access<T, Width> access;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) access[i] = T(values[i]);
    return access;
  }
};

}  // namespace squeeze_excite
}  // namespace onnxbolt
