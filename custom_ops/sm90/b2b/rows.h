// Rows of A that TMA cannot read, since their pitch is no multiple of 16 bytes. Threads copy them
// in aligned chunks of 16 bytes, so that a box's rows begin up to 14 bytes behind their places in
// shared memory. From there they go into the registers of a product, which need no swizzle and no
// alignment.
#pragma once
#include "sm90/b2b/shape.h"
#include "sm90/barrier.h"

namespace onnxbolt {
namespace sm90 {

// Copies 16 bytes into shared memory; those from `bytes` on become zeros and are not read.
__device__ inline void CopyChunk(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(bytes)
               : "memory");
}

// Arrives when this thread's copies so far are complete.
__device__ inline void ArriveBehindCopies(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address())
               : "memory");
}

__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A thread's share of the copies of a tile's rows, one box of columns at a time: `thread` of
// K::kRowThreads. Zeros follow the ends of rows and of the matrix.
template <class K>
class RowCopies {
 public:
  // `first_row` is a multiple of 8, hence at a multiple of 16 bytes.
  __device__ RowCopies(const ChainParams& params, int first_row, int thread)
      : tile_(static_cast<const char*>(params.a_data) + first_row * params.lda * kSize),
        rows_(params.rows - first_row),
        pitch_(static_cast<int>(params.lda) * kSize),
        bytes_(params.k * kSize),
        thread_(thread) {}

  // Neighbouring threads have neighbouring chunks; the part of a row beyond a box's width comes
  // last. The loop is unrolled, so that addresses are computed in parallel.
  __device__ void start(char* stage, int box) const {
    constexpr int kAcross = K::row_bytes(0) / kChunk;
    copy_rows<kAcross>(stage, box, thread_ / kAcross, thread_ % kAcross);
    copy_rows<1>(stage, box, thread_, kAcross);
  }

 private:
  static constexpr int kSize = sizeof(typename K::Element), kChunk = 16;

  // Copies one chunk of each of this thread's rows from `first` on; `Across` threads share a row.
  template <int Across>
  __device__ void copy_rows(char* stage, int box, int first, int chunk) const {
    constexpr int kStep = K::kRowThreads / Across;
#pragma unroll
    for (int i = 0; i < CeilDivide(K::kStageRows, kStep); ++i) {
      if (first + i * kStep < K::kStageRows) copy(stage, first + i * kStep, box, chunk);
    }
  }

  __device__ void copy(char* stage, int row, int box, int chunk) const {
    const int begin = row * pitch_,
              at = (begin + box * K::row_bytes(0)) / kChunk * kChunk + chunk * kChunk;
    const int bytes = row < rows_ ? max(min(begin + bytes_ - at, kChunk), 0) : 0;
    CopyChunk(stage + row * K::kRowPitch + chunk * kChunk, tile_ + (bytes > 0 ? at : 0), bytes);
  }

  const char* tile_;
  int rows_, pitch_, bytes_, thread_;
};

// A thread's fragments of one box: 64 rows of its warpgroup, four registers for each 16 columns.
template <class K>
class RowFragments {
 public:
  static constexpr int kSteps = K::box(0) / 16;
  using Registers = uint32_t[kSteps][4];

  // All tiles begin at a multiple of 8 rows, so that their rows begin at the same places within 16
  // bytes.
  __device__ RowFragments(const ChainParams& params, int first_row) {
    const int lane = threadIdx.x % 32, row = first_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const int shift = static_cast<int>(row * params.lda % 8);
    offset_ = row * K::kRowPitch + (shift / 2 + lane % 4) * 4;
    odd_bits_ = shift % 2 * 16;
  }

  // Reads two neighbouring values: they are in one word, or in two if the row begins at an odd
  // place.
  __device__ void read(const char* rows, Registers& fragments) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* word = reinterpret_cast<const uint32_t*>(
            rows + offset_ + i % 2 * 8 * K::kRowPitch + step * 32 + i / 2 * 16);
        fragments[step][i] = __funnelshift_r(word[0], word[1], odd_bits_);
      }
    }
  }

  // Keeps the compiler from moving them, since products under way read them.
  __device__ static void pin(Registers& fragments) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(fragments[step][i])::"memory");
    }
  }

 private:
  int offset_, odd_bits_;
};

}  // namespace sm90
}  // namespace onnxbolt
