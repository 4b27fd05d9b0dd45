// What one block of squeeze-and-excitation does, step by step.
#pragma once
#include "epilogue/steps.h"
#include "squeeze_excite/cluster.h"
#include "squeeze_excite/rows.h"

namespace onnxbolt {
namespace squeeze_excite {

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

// One block's work. Channels and images are the block's own unless said otherwise.
template <class Element, class Squeeze, class Gate, int Width>
struct Block {
  static constexpr int kWeights = 16 / sizeof(Element);  // to an access along the squeezed channels, which are padded to it
  static constexpr int kBatch = 8;                       // vectors of pixels that a thread loads before it adds them
  using Vector = Access<Element, Width>;

  const Params& params;
  int rank, first_channel, channels, first_image, images;
  float *sums, *means, *gates, *shares, *squeezed;
  Element *staged, *kept;
  const Element *squeeze, *excite;  // rows of weights, wherever they are
  int squeeze_pitch, excite_pitch, mean_pitch;

  __device__ Block(const Params& params, float* shared) : params(params) {
    const Plan& plan = params.plan;
    rank = plan.blocks > 1 ? ClusterRank() : 0;
    const int vectors = params.channels / Width, end = (rank + 1) * vectors / plan.blocks;
    first_channel = rank * vectors / plan.blocks * Width;
    channels = end * Width - first_channel;
    mean_pitch = plan.means / plan.images;
    sums = shared, means = sums + plan.sums, gates = means + plan.means;
    shares = gates + plan.means, squeezed = shares + plan.squeezed;
    staged = reinterpret_cast<Element*>(squeezed + plan.squeezed);
    kept = staged + (plan.weights_staged ? params.squeezed * plan.squeeze_pitch + plan.part * plan.excite_pitch : 0);
    squeeze = static_cast<const Element*>(params.squeeze) + first_channel, squeeze_pitch = params.channels;
    excite = static_cast<const Element*>(params.excite) + int64_t(first_channel) * params.squeezed, excite_pitch = params.squeezed;
  }

  // The images that the following is about; false where there are no more.
  __device__ bool select(int group) {
    first_image = group * params.plan.images;
    images = min(params.plan.images, params.n - first_image);
    return images > 0;
  }

  // Weights are constant, so this may happen while the kernel before still runs.
  __device__ void stage_weights() {
    if (!params.plan.weights_staged) return;
    Element* excite_rows = staged + params.squeezed * params.plan.squeeze_pitch;
    copy_rows<Width>(squeeze, squeeze_pitch, params.squeezed, channels, staged, params.plan.squeeze_pitch);
    copy_rows<kWeights>(excite, excite_pitch, channels, params.squeezed, excite_rows, params.plan.excite_pitch);
    squeeze = staged, squeeze_pitch = params.plan.squeeze_pitch;
    excite = excite_rows, excite_pitch = params.plan.excite_pitch;
  }

  // Channels that have no lane wait for another pass.
  __device__ void compute_means() {
    const int vectors = channels / Width;
    const Threads threads(vectors, images);
    for (int first = 0; first < vectors; first += threads.lanes) {
      const int lane = first + threads.lane;
      if (lane < vectors && threads.image < images) sum_pixels(threads.image, lane * Width, threads.row, threads.rows);
      __syncthreads();
      const int count = min(threads.lanes, vectors - first) * Width, row_pitch = threads.lanes * Width;
      const float share = 1.f / float(params.pixels);
      const auto term = [&](int channel, int i, float (&total)[kMostImages]) {
        ForImages(images, [&](int image) { total[image] += sums[(image * threads.rows + i) * row_pitch + channel]; });
      };
      const auto finish = [&](int channel, const float (&total)[kMostImages]) {
        ForImages(images, [&](int image) { means[image * mean_pitch + first * Width + channel] = total[image] * share; });
      };
      ForRows(count, threads.rows, term, finish);
      __syncthreads();
    }
  }

  // This block's share of the squeezed channels: the products with its own channels.
  __device__ void compute_shares() {
    const auto term = [&](int row, int i, float (&sums)[kMostImages]) {
      AddProducts<Element, Width>(squeeze + int64_t(row) * squeeze_pitch + i * Width, means + i * Width, mean_pitch, images, sums);
    };
    const auto finish = [&](int row, const float (&sums)[kMostImages]) {
      ForImages(images, [&](int image) { shares[image * params.squeezed + row] = sums[image]; });
    };
    ForRows(params.squeezed, channels / Width, term, finish);
  }

  // All blocks' shares, in the order of their ranks.
  __device__ void compute_squeezed() {
    for (int row = threadIdx.x; row < images * params.squeezed; row += blockDim.x) {
      float sum = 0.f;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kMostBlocks; ++block) {
        if (block < params.plan.blocks) sum += params.plan.blocks > 1 ? LoadFromBlock(shares + row, block) : shares[row];
      }
      squeezed[row] = Squeeze::apply(sum + params.squeeze_bias[row % params.squeezed], 0.f, params.step_params);
    }
  }

  __device__ void compute_gates() {
    const auto term = [&](int row, int i, float (&sums)[kMostImages]) {
      const Element* weights = excite + int64_t(row) * excite_pitch + i * kWeights;
      AddProducts<Element, kWeights>(weights, squeezed + i * kWeights, params.squeezed, images, sums);
    };
    const auto finish = [&](int row, const float (&sums)[kMostImages]) {
      const float bias = params.excite_bias[first_channel + row];
      ForImages(images, [&](int image) {
        gates[image * mean_pitch + row] = Gate::apply(sums[image] + bias, 0.f, params.step_params + Squeeze::kParams);
      });
    };
    ForRows(channels, params.squeezed / kWeights, term, finish);
  }

  __device__ void apply_gates() {
    const Threads threads(channels / Width, images);
    for (int lane = threads.lane; lane < channels / Width && threads.image < images; lane += threads.lanes) {
      gate_pixels(threads.image, lane * Width, threads.row, threads.rows);
    }
  }

 private:
  // `pixel` counts those of all the block's images.
  __device__ const Vector* x_at(int pixel, int channel) const {
    const int64_t place = (int64_t(first_image) * params.pixels + pixel) * params.x_pitch + first_channel + channel;
    return reinterpret_cast<const Vector*>(static_cast<const Element*>(params.x) + place);
  }

  __device__ Vector* kept_at(int pixel, int channel) const { return reinterpret_cast<Vector*>(kept + pixel * channels + channel); }

  // Pixels row, row + rows, .. of one vector of channels, a batch of them under way at a time.
  __device__ void sum_pixels(int image, int channel, int row, int rows) {
    cutlass::Array<float, Width> sum;
    sum.clear();
    for (int first = row; first < params.pixels; first += kBatch * rows) {
      Vector batch[kBatch];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        batch[i].clear();
        if (first + i * rows < params.pixels) batch[i] = *x_at(image * params.pixels + first + i * rows, channel);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (params.plan.x_kept && first + i * rows < params.pixels) *kept_at(image * params.pixels + first + i * rows, channel) = batch[i];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < Width; ++j) sum[j] += float(batch[i][j]);
      }
    }
    *reinterpret_cast<Access<float, Width>*>(sums + threadIdx.x * Width) = narrowed<float>(sum);
  }

  __device__ void gate_pixels(int image, int channel, int row, int rows) {
    const auto gate = *reinterpret_cast<const Access<float, Width>*>(gates + image * mean_pitch + channel);
#pragma unroll 4
    for (int p = row; p < params.pixels; p += rows) {
      const int pixel = image * params.pixels + p;
      const Vector x = params.plan.x_kept ? *kept_at(pixel, channel) : *x_at(pixel, channel);
      cutlass::Array<float, Width> y;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Width; ++i) y[i] = float(x[i]) * gate[i];
      const int64_t place = (int64_t(first_image) * params.pixels + pixel) * params.y_pitch + first_channel + channel;
      *reinterpret_cast<Vector*>(static_cast<Element*>(params.y) + place) = narrowed<Element>(y);
    }
  }

  template <class T>
  __device__ static Access<T, Width> narrowed(const cutlass::Array<float, Width>& values) {
    Access<T, Width> access;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Width; ++i) access[i] = T(values[i]);
    return access;
  }

  template <int N>
  __device__ static void copy_rows(const Element* from, int from_pitch, int rows, int columns, Element* to, int to_pitch) {
    const Threads threads(columns / N, 1);
    for (int lane = threads.lane; lane < columns / N; lane += threads.lanes) {
      for (int row = threads.row; row < rows; row += threads.rows) {
        CopyToShared(reinterpret_cast<Access<Element, N>*>(to + row * to_pitch + lane * N),
                     reinterpret_cast<const Access<Element, N>*>(from + int64_t(row) * from_pitch + lane * N));
      }
    }
  }
};

}  // namespace squeeze_excite
}  // namespace onnxbolt
