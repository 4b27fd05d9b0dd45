// Rows of A that TMA cannot read, since their pitch is no multiple of 16 bytes. They are copied in
// aligned chunks of 16 bytes, so that a box's rows begin up to 14 bytes behind their places in
// shared memory; from there they go into the registers of a product, which no swizzle or alignment
// ties.
#pragma once
#include "sm90/b2b/shape.h"
#include "sm90/barrier.h"

namespace onnxbolt {
namespace sm90 {

// Copies 16 bytes into shared memory, of which those from `bytes` on are zeros that are not read.
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
// K::kRowThreads. Zeros stand behind the rows' and the matrix's ends.
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

  // Neighbouring threads have neighbouring chunks; what a row has beyond a box's width comes last.
  // Unrolled, so that addresses are reckoned side by side.
  __device__ void start(char* stage, int box) const {
    constexpr int kAcross = K::row_bytes(0) / kChunk;
    copy_rows<kAcross>(stage, box, thread_ / kAcross, thread_ % kAcross);
    copy_rows<1>(stage, box, thread_, kAcross);
  }

 private:
  static constexpr int kSize = sizeof(typename K::Element), kChunk = 16;

  // One chunk of each row from `first` on that is this thread's, where `Across` threads share a
  // row.
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

  // All tiles begin at a multiple of 8 rows, hence their rows at the same places within 16 bytes.
  __device__ RowFragments(const ChainParams& params, int first_row) {
    const int lane = threadIdx.x % 32, row = first_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const int shift = static_cast<int>(row * params.lda % 8);
    offset_ = row * K::kRowPitch + (shift / 2 + lane % 4) * 4;
    odd_bits_ = shift % 2 * 16;
  }

  // Two neighbouring values lie in one word, or in two where the row begins at an odd place.
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

  // Keeps them where they are, as products under way read them.
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
