// The end of a tile whose product has output channels as rows and pixels as columns: the epilogue
// chain on the accumulators of one consumer warpgroup, which stmatrix transposes on their way
// through swizzled shared memory. A unit is 64 channels of all the tile's pixels.
#pragma once
#include "epilogue/chain.h"
#include "sm90/epilogue.h"

namespace onnxbolt {
namespace sm90 {

constexpr int kUnitChannels = 64;  // rows of one wgmma

// As EpilogueShape, of `Blocks` times 64 channels.
template <class OutputType, class ChainType, int Blocks, int Pixels>
struct SwappedEpilogueShape {
  using Output = OutputType;
  using Chain = ChainType;
  static constexpr int kBlocks = Blocks, kUnitColumns = Pixels, kUnitsAcross = 1, kUnits = Blocks;
  static constexpr bool kResidual = false;
  static constexpr int kRowBytes = kUnitChannels * sizeof(Output), kUnitBytes = Pixels * kRowBytes;
  static constexpr int kBuffers = 2, kStagingBytes = kBuffers * kUnitBytes;
  static constexpr int kVectorBytes =
      0;  // they stay in registers: a thread has two channels of a unit
  static_assert(sizeof(Output) == 2, "stmatrix transposes elements of 2 bytes");
  static_assert(Chain::kTensors == 0, "nothing loads tensor operands");
  static_assert(Pixels % 16 == 0, "stmatrix writes 16 pixels at a time");
};

// The interface of Epilogue, rows being channels and columns pixels. All 128 threads make every
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

  // Of this thread's channels from `first` on, 8 apart in each unit (see Accumulators); they arrive
  // under the main loop.
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

  // Applies the chain to the unit whose first channel in the tile is `channel`, and stores it.
  template <int Size, class Destination>
  CUTLASS_DEVICE void finish_unit(const float (&values)[Size], int channel, int, int,
                                  const Destination& to) {
    char* buffer = memory_.staging + cursor_.stage * Shape::kUnitBytes;
    if (thread_ == 0) WaitForStores<Shape::kBuffers - 1>();  // the one that used the buffer before
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

  // Before the block ends: its shared memory has to live as long as stores read it.
  CUTLASS_DEVICE void drain() {
    if (thread_ == 0) WaitForStores<0>();
  }

 private:
  // The unit's pixels from `Pixel` on, up to 32 at a time: enough independent values to hide the
  // latency of a chain.
  template <int Pixel>
  CUTLASS_DEVICE void finish_from(const float* values, int unit, char* buffer) const {
    constexpr int kLeft = Shape::kUnitColumns - Pixel, kPixels = kLeft >= 32 ? 32 : 16;
    finish_pixels<kPixels>(values + Pixel / 2, unit, buffer, Pixel);
    if constexpr (kLeft > kPixels) finish_from<Pixel + kPixels>(values, unit, buffer);
  }

  // Each group of 8 pixels has four values of a thread: two of its first channel, two of the other.
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

  // The row that this lane gives to stmatrix, of four matrices of 8x8: 16 channels of 8 pixels,
  // then of the next 8.
  CUTLASS_DEVICE uint32_t matrix_row(const char* buffer, int first_pixel) const {
    const int lane = thread_ % 32, pixel = first_pixel + lane % 8 + lane / 16 * 8,
              chunk = thread_ / 32 * 2 + lane / 8 % 2;
    return SharedAddress(buffer + pixel * Shape::kRowBytes +
                         (chunk ^ pixel % 8) * 16);  // swizzled as TMA does
  }

  // No memory clobber: what orders these stores is the fence and the meeting of threads behind the
  // unit.
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
