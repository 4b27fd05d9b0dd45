// Mean and variance of values that come in parts: the parts' means and centered squares are
// combined (Chan, Golub and LeVeque 1979), so that large means cancel nowhere. All sums are in
// fp32, their order depends on shapes and the configuration alone.
#pragma once
#include "cutlass/cutlass.h"

namespace onnxbolt {
namespace group_norm {

// The mean of some values, and the sum of the squares of their distances from it.
struct Moments {
  float mean, squares;
};

// The moments of `a_count` values and `b_count` others together; either may be zero.
CUTLASS_HOST_DEVICE Moments Combined(const Moments& a, float a_count, const Moments& b,
                                     float b_count) {
  if (b_count == 0.f) return a;
  const float share = b_count / (a_count + b_count), distance = b.mean - a.mean;
  return {a.mean + distance * share,
          a.squares + b.squares + distance * distance * (a_count * share)};
}

// The moments of each of `Width` neighbouring channels, of which a thread reads the same pixels.
template <int Width>
struct ChannelMoments {
  float count = 0.f;  // values of each channel
  float mean[Width] = {}, squares[Width] = {};

  // Adds the first `valid` of `Batch` pixels, at least one.
  template <int Batch>
  CUTLASS_HOST_DEVICE void add(const float (&values)[Batch][Width], int valid) {
    const float added = float(valid), share = 1.f / added, total = count + added,
                part = added / total, weight = count * part;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j) {
      float sum = 0.f, centered = 0.f;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Batch; ++i) sum += i < valid ? values[i][j] : 0.f;
      const float own = sum * share;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Batch; ++i) {
        const float distance = i < valid ? values[i][j] - own : 0.f;
        centered += distance * distance;
      }
      const float distance = own - mean[j];
      mean[j] += distance * part;
      squares[j] += centered + distance * distance * weight;
    }
    count = total;
  }

  // Adds what another thread has of the same channels: values as `kept_at(0..2 Width)` gives them,
  // means first.
  template <class KeptAt>
  CUTLASS_HOST_DEVICE void add(float other_count, const KeptAt& kept_at) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j) {
      const Moments both =
          Combined({mean[j], squares[j]}, count, {kept_at(j), kept_at(Width + j)}, other_count);
      mean[j] = both.mean, squares[j] = both.squares;
    }
    count += other_count;
  }
};

}  // namespace group_norm
}  // namespace onnxbolt
