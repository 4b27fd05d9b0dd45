// The epilogue of a halo convolution that stores y as [n, k, p, q], with any number of channels:
// what leaves channels last.
//
// Values go through the chain in registers and are staged in shared memory as they are, channels as
// rows; then a warp takes whole rows, and each of its lanes has the same positions in all of them,
// whose places in memory it finds once. Planes begin anywhere, so that wider accesses would serve a
// part of them only.
#pragma once
#include "cutlass/array.h"
#include "sm90/halo/epilogue.h"

namespace onnxbolt {
namespace halo {

template <class Plan>
class NchwEpilogue {
 public:
  using Accumulators = sm90::Accumulators<Plan::kPositions>;
  using Output = typename Plan::Output;
  using Chain = typename Plan::Chain;

  __device__ NchwEpilogue(const Params& params, const Memory<Plan>& memory, int warpgroup)
      : params_(params),
        places_(memory.places()),
        staging_(memory.staging(warpgroup)),
        warpgroup_(warpgroup),
        warp_(threadIdx.x % kWarpgroupThreads / 32),
        lane_(threadIdx.x % 32),
        plane_(int64_t(params.p) * params.q) {}

  __device__ static void load_weights(const Params&, const Memory<Plan>&) {
  }  // there is but one layer

  // Before the main loop: what can be read while it runs.
  __device__ void begin(const Tile& tile) {
    const int first = tile.channel + (Plan::kInTurns ? 0 : warpgroup_ * kChannels);
    const bool exists =
        tile.image < params_.n;  // an odd number of tiles: a cluster's last block has none
    channels_ = exists ? min(tile.end - first, kChannels) : 0;
    find_pixels(tile, first);
    vectors_.load(params_.epilogue, first, exists ? tile.end : 0);
  }

  // A chunk goes through the chain while the one before it is written.
  __device__ void store(const Accumulators& d) const {
    if (channels_ <= 0) return;
    stage(d, 0);
    synchronize();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      stage(d, chunk + 1);
      write(chunk);
      synchronize();
    }
  }

 private:
  static constexpr int kNowhere = -1;
  static constexpr int kChunk = Plan::kChunk, kChunks = CeilDivide(Plan::kPositions, kChunk),
                       kAccesses = kChunk / 32;
  static constexpr int kWarps = kWarpgroupThreads / 32,
                       kRowsAtOnce = 8;  // rows that a warp has in registers
  using Pair = cutlass::AlignedArray<Output, 2>;

  __device__ void synchronize() const { sm90::SyncThreads(1 + warpgroup_, kWarpgroupThreads); }

  // Finds the places of the first channel's pixels, for the positions that this lane writes.
  __device__ void find_pixels(const Tile& tile, int channel) {
    const int64_t first =
        (int64_t(tile.image) * params_.k + channel) * plane_ + tile.row * params_.q + tile.column;
    const uint32_t last = Place::pack(min(params_.q - tile.column, params_.tile.columns) - 1,
                                      min(params_.p - tile.row, params_.tile.rows) - 1,
                                      min(params_.n - tile.image, params_.tile.images) - 1);
#pragma unroll
    for (int access = 0; access < kChunks * kAccesses; ++access) {
      const Place place = places_[access * 32 + lane_];
      const int64_t other_channels = place.image() * (params_.k - 1) *
                                     plane_;  // places count through pixels with all their channels
      pixels_[access] = place.within(last) ? first + place.pixel + other_channels : kNowhere;
    }
  }

  // The place of a chunk's values: rows of positions, whose groups of eight are permuted so that
  // neither access meets a bank twice.
  __device__ Output* staged(int chunk, int channel, int position) const {
    constexpr int kRowsOfBanks = CeilDivide(128, kChunk * static_cast<int>(sizeof(Output)));
    const int group = (position / kGroup) ^ (channel / kRowsOfBanks % (kChunk / kGroup));
    return reinterpret_cast<Output*>(staging_ + chunk % 2 * Plan::kOutputChunk) + channel * kChunk +
           group * kGroup + position % kGroup;
  }

  __device__ void stage(const Accumulators& d, int chunk) const {
    if (warp_ * 16 >= channels_) return;
    typename Chain::template Operands<4> operands;
    vectors_.read(operands);
    constexpr int kGroups = kChunk / kGroup;
#pragma unroll
    for (int group = chunk * kGroups; group < (chunk + 1) * kGroups; ++group) {
      if (group >= Plan::kPositions / kGroup) break;
      const cutlass::Array<float, 4> values{d[4 * group], d[4 * group + 1], d[4 * group + 2],
                                            d[4 * group + 3]};
      const auto y = Chain::template finish<Output>(values, operands, params_.epilogue.params);
      const int position = group % kGroups * kGroup + lane_ % 4 * 2;
      stage_pair(staged(chunk, LaneChannel(), position), y[0], y[1]);
      stage_pair(staged(chunk, LaneChannel() + 8, position), y[2], y[3]);
    }
  }

  __device__ static void stage_pair(Output* to, Output first, Output second) {
    Pair pair;
    pair[0] = first, pair[1] = second;
    *reinterpret_cast<Pair*>(to) = pair;
  }

  __device__ void write(int chunk) const {
#pragma unroll
    for (int access = 0; access < kAccesses; ++access) {
      const int64_t pixel = pixels_[chunk * kAccesses + access];
      if (pixel == kNowhere) continue;
      for (int row = warp_; row < channels_; row += kRowsAtOnce * kWarps)
        write_rows(chunk, row, access * 32 + lane_, pixel);
    }
  }

  __device__ void write_rows(int chunk, int row, int position, int64_t pixel) const {
    Output values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (row + i * kWarps < channels_) values[i] = *staged(chunk, row + i * kWarps, position);
    }
    Output* y = static_cast<Output*>(params_.y) + pixel;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (row + i * kWarps < channels_) y[(row + i * kWarps) * plane_] = values[i];
    }
  }

  const Params& params_;
  const Place* places_;
  char* staging_;
  const int warpgroup_, warp_, lane_;
  const int64_t plane_;  // elements
  int channels_;         // channels of the tile that the warpgroup has
  int64_t pixels_[kChunks * kAccesses];
  LaneVectors<Chain> vectors_;
};

}  // namespace halo
}  // namespace onnxbolt
