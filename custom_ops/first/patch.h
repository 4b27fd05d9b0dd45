// The pixels under a tile, from an image in NCHW to shared memory: through registers, so that the next tile's are on their way while
// this one's are multiplied.
#pragma once
#include "first/plan.h"

namespace onnxbolt {
namespace first {

// Pixel: the element type of x.
template <class Plan, class Pixel>
class Patch {
 public:
  using Element = typename Plan::Element;

  __device__ explicit Patch(const Params& params) : params_(params) {}

  // Starts the loads of a tile's pixels; those outside of the image are zeros.
  __device__ void fetch(const Tile& tile) {
    const int top = tile.row * Plan::kStrideH - params_.pad_top, left = tile.column * Plan::kStrideW - params_.pad_left;
    const int plane = params_.h * params_.w;
    const Pixel* image = static_cast<const Pixel*>(params_.x) + int64_t(tile.image) * Plan::kC * plane;
#pragma unroll
    for (int i = 0; i < Plan::kLoads; ++i) {
      const Place place(i);
      const int h = top + place.row, w = left + place.column;
      const bool inside = place.exists && unsigned(h) < unsigned(params_.h) && unsigned(w) < unsigned(params_.w);
      pixels_[i] = inside ? image[place.channel * plane + h * params_.w + w] : Pixel(0.f);
    }
  }

  // Puts them into shared memory, converted.
  __device__ void write(Element* patch) const {
#pragma unroll
    for (int i = 0; i < Plan::kLoads; ++i) {
      const Place place(i);
      if (place.exists) patch[place.row * Plan::kPatchPitch + place.column * Plan::kStoredC + place.channel] = Element(float(pixels_[i]));
    }
  }

 private:
  // Which pixel a thread's i-th is: neighbouring threads have neighbouring columns.
  struct Place {
    int row, column, channel;
    bool exists;

    __device__ explicit Place(int i) {
      const int index = i * kThreads + threadIdx.x, line = index / Plan::kPatchColumns;
      column = index - line * Plan::kPatchColumns;
      channel = line / Plan::kPatchRows;
      row = line - channel * Plan::kPatchRows;
      exists = index < Plan::kPatchElements;
    }
  };

  const Params& params_;
  Pixel pixels_[Plan::kLoads];
};

// Padding channels and what lies behind the patch: no load writes there, and what is multiplied by a zero has to be finite.
template <class Plan>
__device__ void ClearPatch(typename Plan::Element* patch) {
  for (int i = threadIdx.x; i < Plan::kPatchBytes / 16; i += kThreads) reinterpret_cast<uint4*>(patch)[i] = uint4{};
}

}  // namespace first
}  // namespace onnxbolt
