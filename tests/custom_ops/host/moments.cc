// Statistics of rows on the host: a warpgroup whose accumulators are rows of a matrix.
#include "emulator.h"
#include "intrinsics.h"

#include "sm90/moments.h"
// here come the architectures and Kernels, a tuple of instances

namespace {

using namespace onnxbolt::sm90;

alignas(128) char shared_memory[emulated::kMemory];

void Run(const std::function<void()>& kernel) {
  emulated::machine.memory = shared_memory;
  emulated::machine.kernel = kernel;
  emulated::RunBlocks(1, 128);
}

// This thread's first row in 64; the other one is 8 below.
int OwnRow() {
  const int thread = threadIdx.x;
  return thread / 32 * 16 + thread % 32 / 4;
}

template <int Blocks, bool Centered>
void Scales(const RowParts& matrix, int first, float epsilon, RowScale* found) {
  Run([=] {
    RowScales<Blocks, Centered> scales;
    scales.fetch(matrix, first, epsilon);
    for (int row = OwnRow(); row < 64 * Blocks; row += row % 16 < 8 ? 8 : 56) {
      const RowScale scale = scales.of(row);
      RowScale& place = found[row];
      if (threadIdx.x % 4 == 0) place = scale;
      __syncwarp();
      emulated::Require(place.mean == scale.mean && place.scale == scale.scale,
                        "the lanes of a row have different statistics");
      __syncwarp();
    }
  });
}

}  // namespace

// Writes the statistics of `values` [rows, kPartColumns] from row `first` on, of all `rows`, to
// `part`: those of 64 rows at the most.
EXPORT void host_write_moments(const float* values, int first, int rows, Moments* part) {
  Run([=] {
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
