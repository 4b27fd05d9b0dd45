// 1x1 convolutions behind a halo convolution, in its kernel: a layer's activated channels go to
// shared memory as the next product's operand of positions, whose weights stay there.
//
// In turns a warpgroup has all channels of its own positions. Cooperative warpgroups have 64
// channels each of the same positions; what one of them writes, the others read. Of the last layer,
// which may have more, a warpgroup takes 64 output channels after the other.
#pragma once
#include <tuple>

#include "sm90/halo/epilogue.h"

namespace onnxbolt {
namespace halo {

constexpr int kFurtherLayers = 2;   // layers behind the first that a configuration has room for
constexpr int kTileRowBytes = 128;  // a position's 64 channels, or 64 weights of an output channel
constexpr int kBoxBytes =
    kChannels * kTileRowBytes;  // a box of weights: 64 output channels x 64 input channels

struct ChainParams : Params {  // in the base, k and the epilogue are the last layer's
  CUtensorMap weights[kFurtherLayers];
  EpilogueArguments inner[kFurtherLayers];  // the epilogues of the layers before the last
  int inner_channels[kFurtherLayers];
};

// Columns of the configuration: threadblock[0], instruction[1], instruction[2] = the layers'
// channels, zeros included.
template <class Config, class... Chains>
struct FurtherLayers {
  static constexpr int kLayers = sizeof...(Chains), kLast = kLayers - 1;

  // A layer's blocks of 64 channels.
  static constexpr int blocks(int layer) {
    constexpr int kColumns[] = {Config::at(kTileM), Config::at(kInstructionN),
                                Config::at(kInstructionK)};
    return kColumns[layer] / kChannels;
  }
  // A layer's weights are boxes: those of the first 64 output channels, then those of the next.
  static constexpr int weight_offset(int layer) {
    return layer == 1
               ? 0
               : weight_offset(layer - 1) + blocks(layer - 1) * blocks(layer - 2) * kBoxBytes;
  }
  static constexpr int kWeightBytes = weight_offset(kLayers);
  static constexpr int kTileBytes = Config::at(kTileN) * kTileRowBytes;
  // The only product that reads the tile is over when its epilogue begins.
  static constexpr bool kTileBecomesStaging =
      Config::at(kSchedule) == kPingpong && kLayers == 2 && blocks(kLast) == 1;

  static_assert(kLayers >= 2 && kLast <= kFurtherLayers,
                "a configuration has room for three layers");
  static_assert((0 + ... + Chains::kParams) <= kMaxParams,
                "all layers together have at most kMaxParams parameters");
};

template <class... Chains>
using LastOf = std::tuple_element_t<sizeof...(Chains) - 1, std::tuple<Chains...>>;

// The first layer's plan, whose epilogue is the last layer's.
template <class Config, class ElementType, class OutputType, class... Chains>
struct ChainPlan
    : Plan<Config, ElementType, OutputType, LastOf<Chains...>, FurtherLayers<Config, Chains...>> {
  using Layers = FurtherLayers<Config, Chains...>;
  using Base = Plan<Config, ElementType, OutputType, LastOf<Chains...>, Layers>;
  using Vectors = std::tuple<LaneVectors<Chains>...>;
  template <int L>
  using ChainOf = std::tuple_element_t<L, std::tuple<Chains...>>;

  // A warpgroup's first block of a layer's channels, and how far its next one is.
  __device__ static constexpr int first_block(int warpgroup) {
    return Base::kInTurns ? 0 : warpgroup;
  }
  static constexpr int kBlockStep = Base::kInTurns ? 1 : Base::kWarpgroups;

  static constexpr int most_inner_blocks(int layer = 0) {
    return layer == Layers::kLast ? 0
                                  : std::max(Layers::blocks(layer), most_inner_blocks(layer + 1));
  }
  static_assert(most_inner_blocks() <= kBlockStep,
                "warpgroups that share positions hold all channels of an inner layer");
  static_assert(Base::kCluster == 1, "clusters share filters of many output channels");
  static_assert(Base::kWeightOffset % 1024 == 0,
                "weights and tiles begin where the pattern of their swizzle does");
};

// Finishes a tile: the further layers behind the first layer's products.
template <class Plan>
class FurtherProducts {
 public:
  using Accumulators = sm90::Accumulators<Plan::kPositions>;
  using Element = typename Plan::Element;
  using Layers = typename Plan::Layers;

  __device__ FurtherProducts(const ChainParams& params, const Memory<Plan>& memory, int warpgroup)
      : params_(params),
        memory_(memory),
        warpgroup_(warpgroup),
        epilogue_(params, memory, warpgroup) {
    load_vectors<0>();
  }

  // One thread; weights do not depend on the kernels before.
  __device__ static void load_weights(const ChainParams& params, const Memory<Plan>& memory) {
    memory.barriers().weights.arrive_and_expect(Layers::kWeightBytes);
    load_layer<1>(params, memory);
  }

  __device__ void begin(const Tile& tile) {
    epilogue_.begin(tile, Plan::first_block(warpgroup_) * kChannels);
  }

  __device__ void store(Accumulators& d) { continue_from<0>(d); }

 private:
  static constexpr int kLast = Layers::kLast;

  template <int L>
  __device__ static void load_layer(const ChainParams& params, const Memory<Plan>& memory) {
    if constexpr (L <= kLast) {
      char* to = memory.weights() + Layers::weight_offset(L);
      for (int row = 0; row < Layers::blocks(L); ++row)
        for (int box = 0; box < Layers::blocks(L - 1); ++box, to += kBoxBytes)
          sm90::Load2D(params.weights[L - 1], memory.barriers().weights, to, box * kChannels,
                       row * kChannels, sm90::Cache::kEvictLast);
      load_layer<L + 1>(params, memory);
    }
  }

  // Those of inner layers are the same for all tiles.
  template <int L>
  __device__ void load_vectors() {
    if constexpr (L < kLast) {
      std::get<L>(vectors_).load(params_.inner[L], Plan::first_block(warpgroup_) * kChannels,
                                 params_.inner_channels[L]);
      load_vectors<L + 1>();
    }
  }

  // Waits for all warpgroups that share a tile.
  __device__ void synchronize() const {
    if constexpr (Plan::kInTurns)
      sm90::SyncThreads(1 + warpgroup_, kWarpgroupThreads);
    else
      sm90::SyncThreads(1 + Plan::kWarpgroups, Plan::kWarpgroups * kWarpgroupThreads);
  }

  // The layers behind layer L, whose products these are.
  template <int L>
  __device__ void continue_from(Accumulators& d) {
    const int first = Plan::first_block(warpgroup_);
    synchronize();  // earlier products have read what is there
    if (first < Layers::blocks(L)) activate<L>(d);
    sm90::FenceAsyncProxy();
    synchronize();
    if constexpr (L + 1 < kLast) {
      if (first < Layers::blocks(L + 1)) multiply<L + 1>(d, first);
      continue_from<L + 1>(d);
    } else {
      for (int block = first; block < Layers::blocks(kLast); block += Plan::kBlockStep) {
        multiply<kLast>(d, block);
        if constexpr (Layers::kTileBecomesStaging) synchronize();
        epilogue_.store(d, (block + Plan::kBlockStep) * kChannels);
      }
    }
  }

  // Layer L's epilogue; its result as the next product's operand.
  template <int L>
  __device__ void activate(const Accumulators& d) const {
    using Chain = typename Plan::template ChainOf<L>;
    static_assert(Chain::kTensors == 0, "inner layers have no residual");
    typename Chain::template Operands<4> operands;
    std::get<L>(vectors_).read(operands);
#pragma unroll
    for (int pair = 0; pair < Plan::kPositions / 16; ++pair) {
      uint32_t result[4];
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const float* sums = d + 4 * (2 * pair + group);
        const auto y = Chain::template finish<Element>(
            cutlass::Array<float, 4>{sums[0], sums[1], sums[2], sums[3]}, operands,
            params_.inner[L].params);
        result[2 * group] = Word(y, 0);
        result[2 * group + 1] = Word(y, 1);
      }
      StoreTransposed(MatrixRow<Element>(memory_.tile(warpgroup_), 16 * pair), result);
    }
  }

  // The products of 64 of layer L's output channels.
  template <int L>
  __device__ void multiply(Accumulators& d, int block) const {
    memory_.barriers().weights.wait(0);
    const char* weights =
        memory_.weights() + Layers::weight_offset(L) + block * Layers::blocks(L - 1) * kBoxBytes;
    constexpr int kSteps = kChannels / sm90::kInstructionK<Element>;
    sm90::PinAccumulators(d);
    sm90::BeginProducts();
#pragma unroll
    for (int box = 0; box < Layers::blocks(L - 1); ++box) {
      const uint64_t a = sm90::OperandDescriptor(weights + box * kBoxBytes, kTileRowBytes);
      const uint64_t b =
          sm90::OperandDescriptor(memory_.tile(Plan::kInTurns ? warpgroup_ : box), kTileRowBytes);
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        sm90::Wgmma<Plan::kPositions>::template multiply<Element>(d, a + 2 * step, b + 2 * step,
                                                                  box + step > 0);
    }
    sm90::CommitProducts();
    sm90::WaitForProducts<0>();
    sm90::PinAccumulators(d);
  }

  const ChainParams& params_;
  const Memory<Plan>& memory_;
  const int warpgroup_;
  Epilogue<Plan> epilogue_;
  typename Plan::Vectors vectors_;
};

}  // namespace halo
}  // namespace onnxbolt
