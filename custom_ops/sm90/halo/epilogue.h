// The epilogue of a halo convolution: a warpgroup's 64 channels x positions go through the steps in
// registers, are transposed through swizzled shared memory, chunk by chunk, and are stored in
// accesses of 16 bytes; tensor operands come the same way.
#pragma once
#include "epilogue/chain.h"
#include "sm90/halo/block.h"
#include "sm90/halo/staging.h"

namespace onnxbolt {
namespace halo {

// Writes the output pixels of a tile's positions, once for all tiles. Called by each consumer
// `thread`.
template <class Plan>
__device__ void FindPlaces(const Params& params, const Memory<Plan>& memory, int thread) {
  const Geometry& tile = params.tile;
#pragma unroll 1
  for (int position = thread; position < kMaxPositions; position += Plan::kConsumerThreads) {
    const int line = position / tile.row_positions, column = position % tile.row_positions;
    const int image = line / tile.image_rows, row = line % tile.image_rows;
    const bool inside = column < tile.columns && row < tile.rows && image < tile.images;
    memory.places()[position] = {(image * params.p + row) * params.q + column,
                                 inside ? Place::pack(column, row, image) : Place::nowhere()};
  }
}

// The first of the two output channels, eight apart, that a lane's accumulators belong to, of the
// warpgroup's 64.
__device__ inline int LaneChannel() {
  return threadIdx.x % kWarpgroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
}

// An epilogue's vectors for a lane's two channels.
template <class Chain>
struct LaneVectors {
  float values[Chain::kVectors > 0 ? Chain::kVectors : 1][2];

  // `first`: the warpgroup's first channel; `channels`: how many there are.
  __device__ void load(const EpilogueArguments& operands, int first, int channels) {
    const int channel = first + LaneChannel();
    for (int i = 0; i < Chain::kVectors; ++i) {
      values[i][0] = channel < channels ? __ldg(operands.vectors[i] + channel) : 0.f;
      values[i][1] = channel + 8 < channels ? __ldg(operands.vectors[i] + channel + 8) : 0.f;
    }
  }

  // Values of the first channel at two positions, then of the second channel at the same.
  __device__ void read(typename Chain::template Operands<4>& operands) const {
#pragma unroll
    for (int i = 0; i < Chain::kVectors; ++i)
      operands.vectors[i] = {values[i][0], values[i][0], values[i][1], values[i][1]};
  }
};

template <class Plan>
class Epilogue {
 public:
  using Accumulators = sm90::Accumulators<Plan::kPositions>;
  using Element = typename Plan::Element;
  using Output = typename Plan::Output;
  using Chain = typename Plan::Chain;

  __device__ Epilogue(const Params& params, const Memory<Plan>& memory, int warpgroup)
      : params_(params),
        places_(memory.places()),
        staging_(memory.staging(warpgroup)),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % kWarpgroupThreads) {}

  // Further layers do nothing here: there is one layer.
  __device__ static void load_weights(const Params&, const Memory<Plan>&) {}

  // Before the main loop: starts the loads that can be under way during it.
  __device__ void begin(const Tile& tile) {
    begin(tile, tile.channel + (Plan::kInTurns ? 0 : warpgroup_ * kChannels));
  }

  // Loads vectors for the 64 output channels from `channel` on.
  __device__ void begin(const Tile& tile, int channel) {
    end_ = tile.end;
    channel_ = tile.image < params_.n
                   ? channel
                   : end_;  // with an odd number of tiles, a cluster's last block has no tile
    first_ = (tile.image * params_.p + tile.row) * params_.q + tile.column;
    last_ = Place::pack(min(params_.q - tile.column, params_.tile.columns) - 1,
                        min(params_.p - tile.row, params_.tile.rows) - 1,
                        min(params_.n - tile.image, params_.tile.images) - 1);
    vectors_.load(params_.epilogue, channel_, end_);
    find_output();
    fetch_first(channel_);
  }

  // Starts the loads for the next products, of the 64 output channels from `next` on, if the tile
  // has any.
  __device__ void store(const Accumulators& d, int next = kNoChannel) {
    next_ = next;
    LaneVectors<Chain> upcoming;
    if (next_ < end_) upcoming.load(params_.epilogue, next_, end_);
    store_chunks(d);
    if (next_ >= end_) return;
    if constexpr (kDepth < kChunks) fetch_first(next_);
    channel_ = next_;
    find_output();
    vectors_ = upcoming;
  }

 private:
  static constexpr int kNoChannel = 1 << 30, kNowhere = -1;
  static constexpr int kPairs = Plan::kPositions / 16;  // pairs of groups of eight positions
  static constexpr int kChunkPairs = Plan::kChunk / 16, kChunks = CeilDivide(kPairs, kChunkPairs);
  static constexpr int kPairOutput = Plan::kOutputChunk / kChunkPairs,
                       kPairTensor = Plan::kTensorChunk / kChunkPairs;
  static constexpr int kTensors = Chain::kTensors > 0 ? Chain::kTensors : 1;
  // Eight threads read or write the 128 bytes of a position's channels, a warpgroup the positions
  // of a pair.
  static constexpr int kLanes = 8, kOutputParts = kChannels * sizeof(Output) / 128,
                       kAccess = 16 / sizeof(Output);
  // Chunks of tensors that are fetched ahead: as many as hide the memory's latency, if the
  // accumulators leave registers.
  static constexpr int kFreeRegisters =
      Plan::kConsumerRegisters - Plan::kPositions / 2 - (sizeof(Output) == 2 ? 72 : 88);
  static constexpr int kDepth =
      std::max(1, std::min(kChunks, kFreeRegisters / (4 * kTensors * kChunkPairs)));
  using Values = cutlass::Array<float, 4>;  // channel c at two positions, channel c + 8 at the same
  using Results = cutlass::Array<typename Plan::Output, 4>;

  // The values of a chunk that this thread writes, and their pixels.
  struct Result {
    uint4 parts[kChunkPairs][kOutputParts];
    int pixels[kChunkPairs];
  };

  // Pipelines chunks: one is read back from shared memory and written while the next one goes
  // through the steps.
  __device__ void store_chunks(const Accumulators& d) {
    Result result;
    if constexpr (Chain::kTensors > 0) {
      stage_tensors(0);
      synchronize();
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      stage(d, chunk);
      stage_tensors(chunk + 1);
      if (chunk > 0) write(result, chunk - 1);
      synchronize();
      read(result, chunk);
    }
    synchronize();
    write(result, kChunks - 1);
  }

  __device__ void synchronize() const { sm90::SyncThreads(1 + warpgroup_, kWarpgroupThreads); }

  // Calls body(pair, its number in the chunk) for each pair of a chunk.
  template <class Body>
  __device__ static void for_each_pair(int chunk, Body body) {
#pragma unroll
    for (int i = 0; i < kChunkPairs; ++i) {
      if (chunk * kChunkPairs + i < kPairs) body(chunk * kChunkPairs + i, i);
    }
  }

  // The place of a pair's values, in one of two chunks.
  __device__ char* staged_output(int pair) const {
    return staging_ + pair % (2 * kChunkPairs) * (kPairOutput + Chain::kTensors * kPairTensor);
  }
  __device__ char* staged_tensor(int pair, int t) const {
    return staged_output(pair) + kPairOutput + t * kPairTensor;
  }

  // The place of a part of this thread's position.
  template <class T>
  __device__ int part_offset(int part) const {
    return StagedVector<T>(thread_ / kLanes, part * kLanes + thread_ % kLanes);
  }

  // The output pixel of this thread's position of a pair, counted from the tile's first one.
  __device__ int find_pixel(int pair) const {
    const Place place = places_[pair * 16 + thread_ / kLanes];
    return place.within(last_) ? place.pixel : kNowhere;
  }

  __device__ void find_output() {
    const int channel = channel_ + thread_ % kLanes * kAccess;
    y_ = static_cast<char*>(params_.y) +
         (first_ * params_.y_pitch + channel) * static_cast<int>(sizeof(Output));
    asm(""
        : "+l"(y_));  // without this the compiler adds the constant params_.y again for each access
    __builtin_assume(__isGlobal(y_));
  }

  // The offset of a pixel's channels in bytes: a product of 32-bit numbers is one instruction, one
  // of 64-bit numbers four.
  template <class T>
  __device__ static int64_t row_offset(int pixel, int64_t pitch) {
    return int64_t(pixel) * static_cast<int>(pitch * static_cast<int>(sizeof(T)));
  }

  __device__ void fetch_first(int first_channel) {
#pragma unroll
    for (int chunk = 0; chunk < kDepth; ++chunk) fetch_tensors(chunk, first_channel);
  }

  __device__ void fetch_tensors(int chunk, int first_channel) {
    if constexpr (Chain::kTensors == 0) return;
    const int channel = first_channel + thread_ % kLanes * 8;
    for_each_pair(chunk, [&](int pair, int i) {
      const int pixel = find_pixel(pair);
      const bool valid = pixel != kNowhere && channel < end_;
#pragma unroll
      for (int t = 0; t < Chain::kTensors; ++t) {
        const char* tensor = static_cast<const char*>(params_.epilogue.tensors[t]) +
                             channel * static_cast<int>(sizeof(Element));
        const int64_t row = row_offset<Element>(first_ + pixel, params_.epilogue.tensor_pitch[t]);
        fetched_[t][chunk % kDepth][i] =
            valid ? *reinterpret_cast<const uint4*>(tensor + row) : uint4{};
      }
    });
  }

  // Writes the fetched values to shared memory, and fetches a later chunk in their place.
  __device__ void stage_tensors(int chunk) {
    if (Chain::kTensors == 0 || chunk >= kChunks) return;
    for_each_pair(chunk, [&](int pair, int i) {
#pragma unroll
      for (int t = 0; t < Chain::kTensors; ++t)
        *reinterpret_cast<uint4*>(staged_tensor(pair, t) + part_offset<Element>(0)) =
            fetched_[t][chunk % kDepth][i];
    });
    if (chunk + kDepth < kChunks)
      fetch_tensors(chunk + kDepth, channel_);
    else if (kDepth == kChunks && next_ < end_)
      fetch_tensors(chunk, next_);
  }

  __device__ void stage(const Accumulators& d, int chunk) {
    for_each_pair(chunk, [&](int pair, int) { stage_pair(d, pair); });
  }

  // Applies the steps to two groups of eight positions, into the staged chunk.
  __device__ void stage_pair(const Accumulators& d, int pair) {
    uint32_t tensors[kTensors][4], result[4];
#pragma unroll
    for (int t = 0; t < Chain::kTensors; ++t)
      LoadTransposed(MatrixRow<Element>(staged_tensor(pair, t), 0), tensors[t]);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const Results y = finish(d, pair * 2 + group, tensors);
      if constexpr (sizeof(Output) == 2) {
        result[2 * group] = Word(y, 0);
        result[2 * group + 1] = Word(y, 1);
      } else {
        stage_wide(y, group * 8, staged_output(pair));
      }
    }
    if constexpr (sizeof(Output) == 2)
      StoreTransposed(MatrixRow<Output>(staged_output(pair), 0), result);
  }

  __device__ Results finish(const Accumulators& d, int group,
                            const uint32_t (&tensors)[kTensors][4]) {
    typename Chain::template Operands<4> operands;
    vectors_.read(operands);
#pragma unroll
    for (int t = 0; t < Chain::kTensors; ++t) {
      const auto upper = Unpack<Element>(tensors[t][group % 2 * 2]),
                 lower = Unpack<Element>(tensors[t][group % 2 * 2 + 1]);
      operands.tensors[t] = {upper[0], upper[1], lower[0], lower[1]};
    }
    const Values values{d[4 * group], d[4 * group + 1], d[4 * group + 2], d[4 * group + 3]};
    return Chain::template finish<Output>(values, operands, params_.epilogue.params);
  }

  // Outputs of four bytes, which stmatrix does not move.
  __device__ static void stage_wide(const Results& y, int first_position, char* staged) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = first_position + threadIdx.x % 4 * 2 + i % 2,
                channel = LaneChannel() + i / 2 * 8;
      *reinterpret_cast<Output*>(staged + StagedVector<Output>(position, channel / 4) +
                                 channel % 4 * sizeof(Output)) = y[i];
    }
  }

  __device__ void read(Result& result, int chunk) const {
    for_each_pair(chunk, [&](int pair, int i) {
      result.pixels[i] = find_pixel(pair);
#pragma unroll
      for (int part = 0; part < kOutputParts; ++part)
        result.parts[i][part] =
            *reinterpret_cast<const uint4*>(staged_output(pair) + part_offset<Output>(part));
    });
  }

  __device__ void write(const Result& result, int chunk) const {
    for_each_pair(chunk, [&](int, int i) {
#pragma unroll
      for (int part = 0; part < kOutputParts; ++part) {
        const int channel = channel_ + (part * kLanes + thread_ % kLanes) * kAccess;
        if (result.pixels[i] == kNowhere || channel >= end_) continue;
        *reinterpret_cast<uint4*>(y_ + row_offset<Output>(result.pixels[i], params_.y_pitch) +
                                  part * 128) = result.parts[i][part];
      }
    });
  }

  const Params& params_;
  const Place* places_;
  char* staging_;
  const int warpgroup_, thread_;
  int channel_;    // the first of the warpgroup's 64 channels
  int next_;       // the first of the 64 channels that follow
  int end_;        // the end of the tile's channels
  int first_;      // the tile's first output pixel
  char* y_;        // this thread's first channel of that pixel in the output
  uint32_t last_;  // the largest coordinates in the tile
  LaneVectors<Chain> vectors_;
  uint4 fetched_[kTensors][kDepth][kChunkPairs];
};

}  // namespace halo
}  // namespace onnxbolt
