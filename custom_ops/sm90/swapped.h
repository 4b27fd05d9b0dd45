// The epilogue of a swapped tile, by one consumer warpgroup: the product's rows are output channels
// and its columns pixels.
//
// How it works: as sm90/epilogue.h, with a unit of 64 channels of all the tile's pixels; stmatrix
// transposes the values on their way into the staging buffer, so that TMA stores them as NHWC.
//
// Constraints: results of 2 bytes, pixels in multiples of 16, no tensor operands.
#pragma once
#include "epilogue/chain.h"
#include "sm90/epilogue.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kUnitChannels = 64;  // rows of one wgmma instruction

// As EpilogueShape, for `Blocks` times 64 channels.
template <class OutputType, class ChainType, int Blocks, int Pixels>
struct SwappedEpilogueShape {
  using Output = OutputType;
  using Chain = ChainType;
  static constexpr int kBlocks = Blocks, kUnitColumns = Pixels, kUnitsAcross = 1, kUnits = Blocks;
  static constexpr bool kResidual = false;
  static constexpr int kRowBytes = kUnitChannels * sizeof(Output), kUnitBytes = Pixels * kRowBytes;
  static constexpr int kBuffers = 2, kStagingBytes = kBuffers * kUnitBytes;
  static constexpr int kVectorBytes =
      0;  // vectors stay in registers: a thread has two channels of a unit
  static_assert(sizeof(Output) == 2, "stmatrix transposes elements of 2 bytes");
  static_assert(Chain::kTensors == 0, "nothing loads tensor operands");
  static_assert(Pixels % 16 == 0, "stmatrix writes 16 pixels at a time");
};

// Has the interface of Epilogue; rows are channels and columns pixels. All 128 threads make every
// call.
template <class Shape>
class SwappedEpilogue {
 public:
  using Output = typename Shape::Output;
  using Chain = typename Shape::Chain;

  // `barrier`: a hardware barrier of this warpgroup's own.
  CUTLASS_DEVICE SwappedEpilogue(const EpilogueMemory<Shape>& memory,
                                 const EpilogueArguments& operands, int barrier)
      : memory_(memory), operands_(operands), barrier_(barrier), thread_(threadIdx.x % 128) {}

  // Begins to fetch the vectors of this thread's channels, from `first` on and 8 apart in each unit
  // (see Accumulators); they arrive under the main loop.
  CUTLASS_DEVICE void fetch_vectors(int first, int end) {
    if (first == first_channel_) return;
    first_channel_ = first;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kBlocks; ++i) {
      const int channel =
          first + i / 2 * kUnitChannels + thread_ / 32 * 16 + thread_ % 32 / 4 + i % 2 * 8;
#pragma unroll
      for (int v = 0; v < Chain::kVectors; ++v)
        vectors_[v][i] = channel < end ? operands_.vectors[v][channel] : 0.f;
    }
  }

  CUTLASS_DEVICE void keep_vectors() {}

  // Applies the steps to the unit whose first channel in the tile is `channel`, and stores it.
  template <int Size, class Destination>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int channel, int, int,
                                  const Destination& to) {
    char* buffer = memory_.staging + cursor_.stage * Shape::kUnitBytes;
    if (thread_ == 0)
      WaitForStores<Shape::kBuffers - 1>();  // until the buffer's last store has read it
    SyncThreads(barrier_, 128);
    finish_from<0>(values, channel / kUnitChannels, buffer);
    FenceAsyncProxy();
    SyncThreads(barrier_, 128);
    if (thread_ == 0) {
      to.store(buffer, 0, channel);
      CommitStores();
    }
    cursor_.advance();
  }

  // Waits for all stores, before the block ends: they read its shared memory.
  CUTLASS_DEVICE void drain() {
    if (thread_ == 0) WaitForStores<0>();
  }

 private:
  // Processes the unit's pixels from `Pixel` on, up to 32 at a time: enough independent values to
  // hide the latency of the steps.
  template <int Pixel>
  CUTLASS_DEVICE void finish_from(const float* values, int unit, char* buffer) const {
    constexpr int kLeft = Shape::kUnitColumns - Pixel, kPixels = kLeft >= 32 ? 32 : 16;
    finish_pixels<kPixels>(values + Pixel / 2, unit, buffer, Pixel);
    if constexpr (kLeft > kPixels) finish_from<Pixel + kPixels>(values, unit, buffer);
  }

  // For each group of 8 pixels a thread has four values: two of its first channel, two of its
  // other.
  template <int Pixels>
  CUTLASS_DEVICE void finish_pixels(const float* values, int unit, char* buffer, int pixel) const {
    constexpr int kCount = Pixels / 2;
    typename Chain::template Operands<kCount> operands;
    cutlass::Array<float, kCount> x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = values[i];
#pragma unroll
    for (int v = 0; v < Chain::kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) operands.vectors[v][i] = vectors_[v][2 * unit + i / 2 % 2];
    }
    write_staged<Pixels>(buffer, pixel,
                         Chain::template finish<Output>(x, operands, operands_.params));
  }

  // The address that this lane gives to stmatrix for four 8x8 matrices: 16 channels of 8 pixels,
  // then of the next 8.
  CUTLASS_DEVICE uint32_t matrix_row(const char* buffer, int first_pixel) const {
    const int lane = thread_ % 32, pixel = first_pixel + lane % 8 + lane / 16 * 8,
              chunk = thread_ / 32 * 2 + lane / 8 % 2;
    return SharedAddress(buffer + pixel * Shape::kRowBytes +
                         (chunk ^ pixel % 8) * 16);  // swizzled as TMA does
  }

  // There is no memory clobber: the fence and the barrier behind the unit order these stores.
  template <int Pixels>
  CUTLASS_DEVICE void write_staged(char* buffer, int pixel,
                                   const cutlass::Array<Output, Pixels / 2>& values) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&values);
#pragma unroll
    for (int i = 0; i < Pixels; i += 16) {
      const uint32_t* w = words + i / 4;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       matrix_row(buffer, pixel + i)),
                   "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
    }
  }

  EpilogueMemory<Shape> memory_;
  const EpilogueArguments& operands_;
  float vectors_[Chain::kVectors > 0 ? Chain::kVectors : 1][2 * Shape::kBlocks];
  int barrier_, thread_;
  int first_channel_ = -1;
  RingCursor<Shape::kBuffers> cursor_;
};

}  // namespace sm90
}  // namespace onnxbolt
