// Which tiles a block works on, and in which order all blocks together walk the output.
#pragma once
#include "sm90/barrier.h"

namespace onnxbolt {
namespace sm90 {

// Tiles are numbered through bands of `band` rows of tiles, within a band column by column: blocks that run at the same time
// share rows of A and of B in L2. A tile of the schedule is one of a whole cluster.
struct TileSchedule {
  int rows, columns, band;

  __host__ __device__ int count() const { return rows * columns; }

  __device__ void locate(int tile, int& row, int& column) const {
    const int first = tile / (band * columns) * band;
    const int height = min(band, rows - first), rest = tile - first * columns;
    column = rest / height;
    row = first + rest - column * height;
  }
};

// A tile's first row and column, in elements.
struct Origin {
  int row, column;
};

// This block's tiles: first, first + step, .. below count. Split along K, the blocks of a cluster share a tile.
template <class K>
struct Tiles {
  const TileSchedule& schedule;
  int rank, first, step;

  __device__ Tiles(const TileSchedule& schedule, int split) : schedule(schedule) {
    const int cluster = K::kClusterSize * split;
    rank = cluster > 1 ? ClusterRank() : 0;
    first = blockIdx.x / cluster;
    step = gridDim.x / cluster;
  }

  __device__ Origin origin(int tile) const {
    int row, column;
    schedule.locate(tile, row, column);
    if constexpr (K::kClusterSize > 1) {
      row = row * K::kClusterM + rank % K::kClusterM;
      column = column * K::kClusterN + rank / K::kClusterM;
    }
    return {row * K::kTileM, column * K::kTileN};
  }
};

}  // namespace sm90
}  // namespace onnxbolt
