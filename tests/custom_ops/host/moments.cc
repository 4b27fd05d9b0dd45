// Statistics of rows on the host: a warpgroup whose accumulators are rows of a matrix, and two
// warps that combine statistics.
#include "emulator.h"
#include "intrinsics.h"

#include "sm90/moments.h"
// here come the architectures and Kernels, a tuple of instances

namespace {

using namespace onnxbolt;
using namespace onnxbolt::sm90;

alignas(128) char shared_memory[emulated::kMemory];

void Run(int threads, const std::function<void()>& kernel) {
  emulated::machine.memory = shared_memory;
  emulated::machine.kernel = kernel;
  emulated::RunBlocks(1, threads);
}

// This thread's first row in 64; the other one is 8 below.
int OwnRow() {
  const int thread = threadIdx.x;
  return thread / 32 * 16 + thread % 32 / 4;
}

template <int Blocks, bool Centered>
void Scales(const RowParts& matrix, int first, float epsilon, RowScale* found) {
  Run(64, [=] { CombineRows<64 * Blocks, Centered>(matrix, first, epsilon, threadIdx.x, found); });
}

}  // namespace

// Writes the statistics of `values` [rows, kPartColumns] from row `first` on, of all `rows`, to
// `part`: those of 64 rows at the most.
EXPORT void host_write_moments(const float* values, int first, int rows, Moments* part) {
  Run(128, [=] {
    float own[kPartColumns / 2];
    for (int i = 0; i < kPartColumns / 2; ++i) {
      const int row = first + OwnRow() + i % 4 / 2 * 8,
                column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      own[i] = row < rows ? values[row * kPartColumns + column] : NAN;
    }
    WriteMoments(own, part, first + OwnRow(), rows);
  });
}

// A norm's effect on the 64 `blocks` rows from `first` on of a matrix with statistics
// [count, rows].
EXPORT void host_scales(const Moments* parts, int count, int rows, int first, int blocks,
                        bool centered, float epsilon, RowScale* found) {
  const RowParts matrix{parts, count, rows};
  if (blocks == 1 && centered) Scales<1, true>(matrix, first, epsilon, found);
  if (blocks == 1 && !centered) Scales<1, false>(matrix, first, epsilon, found);
  if (blocks == 2 && centered) Scales<2, true>(matrix, first, epsilon, found);
  if (blocks == 2 && !centered) Scales<2, false>(matrix, first, epsilon, found);
}
