// Loads the pixels under a tile from an NCHW image into shared memory, through registers, so that
// the next tile's loads are under way while this one's pixels are multiplied.
#pragma once
#include "sm90/stem/plan.h"

namespace onnxbolt {
namespace stem {

// The beginning of the patch's columns: the image is read in aligned quads, so that up to three
// columns more are read on the left.
struct Shift {
  int columns;
  bool odd;  // true: the patch is shifted by one element, so that the first pixel begins at an even
             // one

  template <class Plan>
  __device__ Shift(const Params& params, Plan) {
    columns = (kQuad - params.pad_left % kQuad) % kQuad;
    odd = columns * Plan::kStoredC % 2 != 0;
  }
};

// Pixel: the element type of x. A thread takes quads, four neighbouring columns of a row, in all
// channels.
template <class Plan, class Pixel>
class Patch {
 public:
  using Element = typename Plan::Element;

  __device__ explicit Patch(const Params& params) : params_(params), shift_(params, Plan{}) {
    aligned_ = params.w % kQuad == 0 &&
               reinterpret_cast<uintptr_t>(params.x) % (kQuad * sizeof(Pixel)) == 0;
  }

  // Starts the loads of a tile's pixels; those outside of the image are zeros.
  __device__ void fetch(const Tile& tile) {
    const int top = tile.row * Plan::kStrideH - params_.pad_top,
              left = tile.column * Plan::kStrideW - params_.pad_left - shift_.columns;
    const int plane = params_.h * params_.w;
    const Pixel* image =
        static_cast<const Pixel*>(params_.x) + int64_t(tile.image) * Plan::kC * plane;
#pragma unroll
    for (int i = 0; i < Plan::kLoads; ++i) {
      const Place place(i);
      const int h = top + place.row, w = left + place.column;
      const bool inside = place.exists && unsigned(h) < unsigned(params_.h);
#pragma unroll
      for (int channel = 0; channel < Plan::kC; ++channel)
        quads_[i][channel] = load(image + channel * plane + h * params_.w, w, inside);
    }
  }

  // Writes them into shared memory: converted, and with a pixel's channels side by side.
  __device__ void write(Element* patch) const {
#pragma unroll
    for (int i = 0; i < Plan::kLoads; ++i) {
      const Place place(i);
      cutlass::Array<Element, kRun> run;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int channel = j % Plan::kStoredC;
        run[j] = channel < Plan::kC ? Element(float(quads_[i][channel][j / Plan::kStoredC]))
                                    : Element(0.f);
      }
      if (place.exists)
        store(patch + place.row * Plan::kPatchPitch + place.column * Plan::kStoredC, run);
    }
  }

 private:
  using Quad = cutlass::AlignedArray<Pixel, kQuad>;
  using Pair = cutlass::AlignedArray<Element, 2>;
  using Four = cutlass::AlignedArray<Element, 4>;
  static constexpr int kRun = kQuad * Plan::kStoredC;

  // The quad that is a thread's i-th: neighbouring threads have neighbouring columns.
  struct Place {
    int row, column;
    bool exists;

    __device__ explicit Place(int i) {
      const int index = i * kGroupThreads + threadIdx.x % kGroupThreads;
      row = index / Plan::kRowQuads;
      column = (index - row * Plan::kRowQuads) * kQuad;
      exists = index < Plan::kPatchRows * Plan::kRowQuads;
    }
  };

  // If rows are aligned, a quad is inside or outside of the image as a whole.
  __device__ Quad load(const Pixel* row, int w, bool inside) const {
    Quad quad;
    quad.fill(Pixel(0.f));
    if (aligned_) {
      if (inside && unsigned(w) < unsigned(params_.w))
        quad = *reinterpret_cast<const Quad*>(row + w);
    } else {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        if (inside && unsigned(w + j) < unsigned(params_.w)) quad[j] = row[w + j];
      }
    }
    return quad;
  }

  __device__ void store(Element* to, const cutlass::Array<Element, kRun>& run) const {
    if (!shift_.odd) {
#pragma unroll
      for (int j = 0; j < kRun; j += 4) *reinterpret_cast<Four*>(to + j) = part<4>(run, j);
      return;
    }
    to[1] = run[0];
#pragma unroll
    for (int j = 1; j + 1 < kRun; j += 2) *reinterpret_cast<Pair*>(to + 1 + j) = part<2>(run, j);
    to[kRun] = run[kRun - 1];
  }

  template <int Count>
  __device__ static cutlass::AlignedArray<Element, Count> part(
      const cutlass::Array<Element, kRun>& run, int first) {
    cutlass::AlignedArray<Element, Count> elements;
#pragma unroll
    for (int i = 0; i < Count; ++i) elements[i] = run[first + i];
    return elements;
  }

  const Params& params_;
  const Shift shift_;
  bool aligned_;
  Quad quads_[Plan::kLoads][Plan::kC];
};

}  // namespace stem
}  // namespace onnxbolt
