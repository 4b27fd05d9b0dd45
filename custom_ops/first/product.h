// The product of a first convolution: pixels as A, from registers, weights as B, in shared memory for as long as the block lives.
//
// A lane's fragment of A is read straight from the patch: no im2col is written anywhere.
#pragma once
#include "first/patch.h"

namespace onnxbolt {
namespace first {

// multiply<Element>(d, a, b, accumulate): d = a b^T, plus d where `accumulate` is not 0; a: a lane's fragment of 64 x 16 (PTX ISA:
// wgmma, "Register Fragments").
template <int Columns>
struct Product;

#define ONNXBOLT_FRAGMENT_PRODUCT(SHAPE, REGISTERS, A0, A1, A2, A3, B, ACCUMULATE, ...)                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE ", 0;\nwgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS \
               "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}"                                        \
               : __VA_ARGS__                                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

// A0 to ACCUMULATE: the operands' numbers, which follow those of the accumulators.
#define ONNXBOLT_FRAGMENT_WGMMA(COLUMNS, REGISTERS, A0, A1, A2, A3, B, ACCUMULATE, ...)                                           \
  template <>                                                                                                                     \
  struct Product<COLUMNS> {                                                                                                       \
    template <class Element>                                                                                                      \
    CUTLASS_DEVICE static void multiply(sm90::Accumulators<COLUMNS>& d, const uint32_t (&a)[4], uint64_t b, int accumulate) {     \
      if constexpr (std::is_same_v<Element, cutlass::half_t>)                                                                     \
        ONNXBOLT_FRAGMENT_PRODUCT("m64n" #COLUMNS "k16.f32.f16.f16", REGISTERS, A0, A1, A2, A3, B, ACCUMULATE, __VA_ARGS__);      \
      else                                                                                                                        \
        ONNXBOLT_FRAGMENT_PRODUCT("m64n" #COLUMNS "k16.f32.bf16.bf16", REGISTERS, A0, A1, A2, A3, B, ACCUMULATE, __VA_ARGS__);    \
    }                                                                                                                             \
  }

ONNXBOLT_FRAGMENT_WGMMA(8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, 9, ONNXBOLT_D4(0));
ONNXBOLT_FRAGMENT_WGMMA(16, ONNXBOLT_REGISTERS_0, 8, 9, 10, 11, 12, 13, ONNXBOLT_D8(0));
ONNXBOLT_FRAGMENT_WGMMA(24, ONNXBOLT_REGISTERS_0 ", %8, %9, %10, %11", 12, 13, 14, 15, 16, 17, ONNXBOLT_D8(0), ONNXBOLT_D4(8));
ONNXBOLT_FRAGMENT_WGMMA(32, ONNXBOLT_FIRST_16, 16, 17, 18, 19, 20, 21, ONNXBOLT_D16(0));
ONNXBOLT_FRAGMENT_WGMMA(40, ONNXBOLT_FIRST_16 ", %16, %17, %18, %19", 20, 21, 22, 23, 24, 25, ONNXBOLT_D16(0), ONNXBOLT_D4(16));
ONNXBOLT_FRAGMENT_WGMMA(48, ONNXBOLT_FIRST_16 ", " ONNXBOLT_REGISTERS_16, 24, 25, 26, 27, 28, 29, ONNXBOLT_D16(0), ONNXBOLT_D8(16));
ONNXBOLT_FRAGMENT_WGMMA(64, ONNXBOLT_FIRST_32, 32, 33, 34, 35, 36, 37, ONNXBOLT_D32(0));
ONNXBOLT_FRAGMENT_WGMMA(80, ONNXBOLT_FIRST_32 ", " ONNXBOLT_REGISTERS_32, 40, 41, 42, 43, 44, 45, ONNXBOLT_D32(0), ONNXBOLT_D8(32));
ONNXBOLT_FRAGMENT_WGMMA(96, ONNXBOLT_FIRST_48, 48, 49, 50, 51, 52, 53, ONNXBOLT_D32(0), ONNXBOLT_D16(32));
ONNXBOLT_FRAGMENT_WGMMA(112, ONNXBOLT_FIRST_48 ", " ONNXBOLT_REGISTERS_48, 56, 57, 58, 59, 60, 61, ONNXBOLT_D32(0), ONNXBOLT_D16(32),
                        ONNXBOLT_D8(48));
ONNXBOLT_FRAGMENT_WGMMA(128, ONNXBOLT_FIRST_64, 64, 65, 66, 67, 68, 69, ONNXBOLT_D64(0));

// The weights of output channels `first` .., on their way to shared memory, where they are steps of [channel][16], each row swizzled
// as an operand of 32 bytes (wgmma.h). A thread takes chunks, some at a time, since each element arrives in a register of its own.
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
  static constexpr int kRowChunks = 2 * Plan::kSteps, kChunks = (Plan::kN * kRowChunks + Plan::kThreads - 1) / Plan::kThreads;
  static constexpr int kAtOnce = std::min(kChunks, kChunksAtOnce);

  // Which chunk of which channel a thread's i-th is, and the part of which run of the filter.
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

  __device__ void load(int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Place place(begin + i);
      const bool exists = place.exists && place.run < Plan::kR && first_ + place.channel < params_.k;
      const int line = (first_ + place.channel) * Plan::kR + place.run;
      const Element* run = static_cast<const Element*>(params_.filter) + line * Plan::kS * Plan::kC;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const int k = place.part * kChunk + j, s = k / Plan::kStoredC, c = k % Plan::kStoredC;
        chunks_[i][j] = exists && s < Plan::kS && c < Plan::kC ? run[s * Plan::kC + c] : Element(0.f);
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
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, first = shift.columns * Plan::kStoredC + shift.odd;
    pixel_ = reinterpret_cast<const char*>(memory.patch(group) + first);
    pixel_ += warp * Plan::kStrideH * kRowBytes + lane / 4 * kPixelBytes + lane % 4 * 4;
  }

  // The products of one unit of the tile.
  __device__ void multiply(Sums& sums, int unit) const {
    const char* pixel = pixel_ + unit * kUnitRows * Plan::kStrideH * kRowBytes;
#pragma unroll
    for (int first = 0; first < Plan::kSteps; first += kGroup) multiply_group(sums, pixel, first);
  }

 private:
  static constexpr int kSize = sizeof(Element), kRowBytes = Plan::kPatchPitch * kSize;
  static constexpr int kPixelBytes = Plan::kStrideW * Plan::kStoredC * kSize;  // from one output pixel to the next
  // Fragments are registers until the products have read them: as few groups of steps as may be, nearly equal.
  static constexpr int kGroups = (Plan::kSteps + kStepsAtOnce - 1) / kStepsAtOnce, kGroup = (Plan::kSteps + kGroups - 1) / kGroups;

  __device__ void multiply_group(Sums& sums, const char* pixel, int first) const {
    uint32_t a[kGroup][4];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[i][j] = read(pixel + j % 2 * 8 * kPixelBytes, 2 * (first + i) + j / 2);
        asm volatile("" : "+r"(a[i][j])::"memory");  // before the fence
      }
    }
    sm90::PinAccumulators(sums);
    sm90::BeginProducts();
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int step = first + i;
      if (step < Plan::kSteps) Product<Plan::kN>::template multiply<Element>(sums, a[i], weights_ + step * Plan::kStepBytes / 16, step > 0);
    }
    sm90::CommitProducts();
    sm90::WaitForProducts<0>();
    sm90::PinAccumulators(sums);
  }

  // Two elements of a chunk. What a run's last chunk has of the next pixels may be infinite: zero weights would make NaN of it.
  __device__ uint32_t read(const char* pixel, int chunk) const {
    if (chunk >= Plan::kChunks) return 0;
    const int run = chunk / Plan::kRunChunks, place = chunk % Plan::kRunChunks;
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(pixel + run * kRowBytes + place * kChunk * kSize);
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

}  // namespace first
}  // namespace onnxbolt
