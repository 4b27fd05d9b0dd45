// The tiles that a block works on, and the order in which all blocks together walk the output.
#pragma once
#include <cstdint>

#include "sm90/barrier.h"
#include "sm90/divisor.h"

namespace onnxbolt {
namespace sm90 {

// Groups of a convolution: an output channel is computed from the input channels of its group.
struct ChannelGroups {
  Divisor columns;  // output channels of a group
  int depth;        // input channels of a group

  __device__ int first_channel(int column) const { return columns.divide(column) * depth; }
};

// The order of tiles: bands of `band` rows of tiles, within a band column by column, so that blocks
// that run at the same time share rows of A and of B in L2. A tile here is that of a whole cluster.
struct TileSchedule {
  int rows, columns, band;
  Divisor tiles_of_band;

  TileSchedule() = default;
  TileSchedule(int rows, int columns, int band)
      : rows(rows), columns(columns), band(band), tiles_of_band(band * columns) {}

  __host__ __device__ int count() const { return rows * columns; }

  __device__ void locate(int tile, int& row, int& column) const {
    const int first = tiles_of_band.split(tile) * band, height = min(band, rows - first);
    column = band == 1 ? tile : tile / height;
    row = first + tile - column * height;
  }
};

// A tile's first row and column, in elements.
struct Origin {
  int row, column;
};

// This block's tiles: first, first + step, .. below count. Blocks of a cluster that share k-blocks
// have the same tiles.
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
