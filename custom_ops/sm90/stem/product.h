// The product of a stem convolution: pixels are operand A, from registers; weights are operand B,
// in shared memory for as long as the block lives.
//
// A lane reads its fragment of A straight from the patch: no im2col matrix is written.
#pragma once
#include "sm90/stem/patch.h"
#include "sm90/wgmma_registers.h"

namespace onnxbolt {
namespace stem {

// Loads the weights of output channels `first` .. into shared memory, as steps of [channel][16]
// whose rows are swizzled as an operand of 32 bytes (sm90/wgmma.h). A thread loads a few chunks at
// a time, since each element arrives in a register of its own.
template <class Plan>
class Weights {
 public:
  using Element = typename Plan::Element;

  // Starts the first loads.
  __device__ Weights(const Params& params, int first) : params_(params), first_(first) { load(0); }

  __device__ void write(char* weights) {
    store(0, weights);
    for (int i = kAtOnce; i < kChunks; i += kAtOnce) {
      load(i);
      store(i, weights);
    }
  }

 private:
  using Chunk = cutlass::AlignedArray<Element, kChunk>;
  static constexpr int kRowChunks = 2 * Plan::kSteps,
                       kChunks = CeilDivide(Plan::kN * kRowChunks, Plan::kThreads);
  static constexpr int kAtOnce = std::min(kChunks, kChunksAtOnce);

  // The channel and chunk that is a thread's i-th, and the part of a run of the filter that it is.
  struct Place {
    int channel, chunk, run, part;
    bool exists;

    __device__ explicit Place(int i) {
      const int index = i * Plan::kThreads + threadIdx.x;
      channel = index / kRowChunks;
      chunk = index - channel * kRowChunks;
      run = chunk / Plan::kRunChunks;
      part = chunk - run * Plan::kRunChunks;
      exists = channel < Plan::kN;
    }
  };

  // The channel whose weights are a product's column.
  __device__ static constexpr int source(int column) {
    return Plan::kCodes ? sm90::ColumnOfCodes(column) : column;
  }

  __device__ void load(int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Place place(begin + i);
      const bool exists =
          place.exists && place.run < Plan::kR && first_ + source(place.channel) < params_.k;
      const int line = (first_ + source(place.channel)) * Plan::kR + place.run;
      const Element* run = static_cast<const Element*>(params_.filter) + line * Plan::kS * Plan::kC;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const int k = place.part * kChunk + j, s = k / Plan::kStoredC, c = k % Plan::kStoredC;
        chunks_[i][j] =
            exists && s < Plan::kS && c < Plan::kC ? run[s * Plan::kC + c] : Element(0.f);
      }
    }
  }

  __device__ void store(int begin, char* weights) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Place place(begin + i);
      const int half = (place.chunk ^ place.channel / 4) % 2;
      char* to = weights + place.chunk / 2 * Plan::kStepBytes + place.channel * 32 + half * 16;
      if (place.exists) *reinterpret_cast<Chunk*>(to) = chunks_[i];
    }
  }

  const Params& params_;
  const int first_;
  Chunk chunks_[kAtOnce];
};

template <class Plan>
class MainLoop {
 public:
  using Element = typename Plan::Element;
  using Sums = sm90::Accumulators<Plan::kN>;

  __device__ MainLoop(const Memory<Plan>& memory, int group, const Shift& shift)
      : weights_(sm90::OperandDescriptor(memory.weights(), 32)), tail_mask_(tail_mask()) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
              first = shift.columns * Plan::kStoredC + shift.odd;
    pixel_ = reinterpret_cast<const char*>(memory.patch(group) + first);
    pixel_ += warp * Plan::kStrideH * kRowBytes + lane / 4 * kPixelBytes + lane % 4 * 4;
  }

  // Multiplies one unit of the tile.
  __device__ void multiply(Sums& sums, int unit) const {
    const char* pixel = pixel_ + unit * kUnitRows * Plan::kStrideH * kRowBytes;
#pragma unroll
    for (int first = 0; first < Plan::kSteps; first += kGroup) multiply_group(sums, pixel, first);
  }

 private:
  static constexpr int kSize = sizeof(Element), kRowBytes = Plan::kPatchPitch * kSize;
  static constexpr int kPixelBytes =
      Plan::kStrideW * Plan::kStoredC * kSize;  // bytes from one output pixel to the next
  // Fragments are in registers until the products have read them: steps are in as few groups as
  // possible, nearly equal.
  static constexpr int kGroups = CeilDivide(Plan::kSteps, kStepsAtOnce),
                       kGroup = CeilDivide(Plan::kSteps, kGroups);

  __device__ void multiply_group(Sums& sums, const char* pixel, int first) const {
    uint32_t a[kGroup][4];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[i][j] = read(pixel + j % 2 * 8 * kPixelBytes, 2 * (first + i) + j / 2);
        asm volatile("" : "+r"(a[i][j])::"memory");  // these registers are written before the fence
      }
    }
    sm90::PinAccumulators(sums);
    sm90::BeginProducts();
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int step = first + i;
      if (step < Plan::kSteps)
        sm90::WgmmaFromRegisters<Plan::kN>::template multiply<Element>(
            sums, a[i], weights_ + step * Plan::kStepBytes / 16, step > 0);
    }
    sm90::CommitProducts();
    sm90::WaitForProducts<0>();
    sm90::PinAccumulators(sums);
  }

  // Two elements of a chunk. Elements of the next pixels in a run's last chunk are masked: they may
  // be infinite, and zero weights would make NaN of them.
  __device__ uint32_t read(const char* pixel, int chunk) const {
    if (chunk >= Plan::kChunks) return 0;
    const int run = chunk / Plan::kRunChunks, place = chunk % Plan::kRunChunks;
    const uint32_t pair =
        *reinterpret_cast<const uint32_t*>(pixel + run * kRowBytes + place * kChunk * kSize);
    return place == Plan::kRunChunks - 1 && Plan::kTailElements < kChunk ? pair & tail_mask_ : pair;
  }

  __device__ static uint32_t tail_mask() {
    const int elements = Plan::kTailElements - static_cast<int>(threadIdx.x % 4) * 2;
    return elements >= 2 ? 0xffffffff : elements == 1 ? 0xffff : 0;
  }

  const uint64_t weights_;
  const uint32_t tail_mask_;
  const char* pixel_;
};

}  // namespace stem
}  // namespace onnxbolt
