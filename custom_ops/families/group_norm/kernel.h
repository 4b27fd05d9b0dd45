// Group and instance normalization of NHWC images for every architecture, with an epilogue.
//
// One kernel (resident): the blocks of a cluster share an image's part of channels, and exchange
// their moments through the cluster's shared memory. What a block has read stays in its shared
// memory where there is room, else it is read again. Without clusters in hardware a cluster is one
// block.
// Two kernels: the first writes the moments of each block's pixels, the second combines them and
// reads x again.
//
// Results are the same bits on every run, and do not depend on other images.
//
// Constraints: channels, pitches and pointers are multiples of align_a elements; groups divide the
// channels.
#pragma once
#include "families/group_norm/block.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace group_norm {

// A configuration's numbers by their names (GroupNormConfig in onnxbolt/families/group_norm/).
template <class Row>
struct Tile {
  static constexpr int kThreads = Row::at(kTileM);
  static constexpr int kWidth = Row::at(kAlignA);  // elements of an access
  static constexpr bool kOneKernel = Row::at(kResident);
  // a thread's registers suffice for its pixels under way
  static constexpr int kBlocksOfSm = 1024 / kThreads > 1 ? 512 / kThreads : 1;

  static_assert(kThreads % kWarp == 0 && kThreads <= 1024, "a block has whole warps");
};

template <class Row, class Element, class Output, class Chain>
using BlockOf = Block<Element, Output, Chain, Tile<Row>::kWidth, Tile<Row>::kThreads>;

extern __shared__ float4 shared_memory[];

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Row, class Element, class Output, class Chain>
static __global__ void __launch_bounds__(Tile<Row>::kThreads, Tile<Row>::kBlocksOfSm)
    run(const __grid_constant__ Params params) {
  LaunchDependents();
  BlockOf<Row, Element, Output, Chain> block(params, reinterpret_cast<float*>(shared_memory));
  WaitForPredecessors();
  block.measure();
  ArriveAtCluster();
  WaitForCluster();
  block.exchange();
  ArriveAtCluster();  // the others may still read this block's moments: it must not end before
  block.apply();
  WaitForCluster();
}

template <class Row, class Element, class Output, class Chain>
static __global__ void __launch_bounds__(Tile<Row>::kThreads, Tile<Row>::kBlocksOfSm)
    measure(const __grid_constant__ Params params) {
  LaunchDependents();
  BlockOf<Row, Element, Output, Chain> block(params, reinterpret_cast<float*>(shared_memory));
  WaitForPredecessors();
  block.measure();
  block.hand_on();
}

template <class Row, class Element, class Output, class Chain>
static __global__ void __launch_bounds__(Tile<Row>::kThreads, Tile<Row>::kBlocksOfSm)
    apply(const __grid_constant__ Params params) {
  LaunchDependents();
  BlockOf<Row, Element, Output, Chain> block(params, reinterpret_cast<float*>(shared_memory));
  WaitForPredecessors();
  block.take_over();
  block.apply();
}

}  // namespace group_norm

template <class Config, class ElementType, class OutputType, class Chain>
struct GroupNorm {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Tile = group_norm::Tile<Row>;
  static constexpr bool kHasClusters = ArchOf<Row>::kClusters;
  static constexpr int kMostBlocks = 8;  // a cluster's, on every GPU that has clusters
  static constexpr int kSharedMemory = ArchOf<Row>::kSharedMemory;

  static const char* prepare() {
    if constexpr (Tile::kOneKernel) {
      return ReserveSharedMemory(group_norm::run<Row, Element, Output, Chain>, kSharedMemory);
    } else {
      const char* const error =
          ReserveSharedMemory(group_norm::measure<Row, Element, Output, Chain>, kSharedMemory);
      return error ? error
                   : ReserveSharedMemory(group_norm::apply<Row, Element, Output, Chain>,
                                         kSharedMemory);
    }
  }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const GroupNormArguments*>(arguments);
    if (const char* error = CheckExtents(int64_t(args.n) * args.pixels, args.channels, 1))
      return error;
    if (args.groups < 1 || args.channels < 1 || args.channels % args.groups)
      return "the groups do not divide the channels";
    if (args.channels % Tile::kWidth || args.x_pitch % Tile::kWidth || args.y_pitch % Tile::kWidth)
      return "channels or pitches are not multiples of align_a";
    if (!IsAligned(args.x, sizeof(Element) * Tile::kWidth) ||
        !IsAligned(args.y, sizeof(Output) * Tile::kWidth))
      return "x or y is not aligned to align_a elements";
    if (args.gamma == nullptr || args.beta == nullptr) return "gamma or beta is missing";
    for (const void* values : {args.before, args.scale, args.shift})
      if (!IsAligned(values, sizeof(Element) * Tile::kWidth))
        return "a vector of each image is not aligned to align_a elements";
    // the smallest part is one group, or as many as make whole accesses
    if (plan_of(args, 1, 1).bytes > kSharedMemory)
      return "a group has too many channels for shared memory";
    return CheckOperands<Chain, Element>(args.epilogue, Tile::kWidth);
  }

  static size_t workspace_size(const void* arguments, const int64_t* config) {
    const auto& args = *static_cast<const GroupNormArguments*>(arguments);
    if (Tile::kOneKernel || args.n == 0 || args.pixels == 0) return 0;
    return group_norm::HandedBytes(args, planned(args, config));
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const GroupNormArguments*>(arguments);
    if (args.n == 0 || args.pixels == 0) return nullptr;
    const group_norm::Params params{args, planned(args, launch.config),
                                    static_cast<float*>(launch.workspace)};
    const int64_t blocks = group_norm::BlocksOf(args, params.plan);
    if (blocks > INT32_MAX) return "there are too many images";
    const auto launched = [&](auto kernel, int cluster) {
      return LaunchDependent(kernel, static_cast<unsigned>(blocks), Tile::kThreads, launch.stream,
                             params, ArchOf<Row>::kDependentLaunch, params.plan.bytes, cluster);
    };
    if constexpr (Tile::kOneKernel) {
      return launched(group_norm::run<Row, Element, Output, Chain>, params.plan.blocks);
    } else {
      const char* const error = launched(group_norm::measure<Row, Element, Output, Chain>, 1);
      return error ? error : launched(group_norm::apply<Row, Element, Output, Chain>, 1);
    }
  }

 private:
  static group_norm::Plan plan_of(const GroupNormArguments& args, int64_t part, int64_t blocks) {
    if (Tile::kOneKernel) blocks = std::min<int64_t>(blocks, kHasClusters ? kMostBlocks : 1);
    return group_norm::MakePlan<Element>(args, Tile::kWidth, Tile::kThreads, part, blocks,
                                         Tile::kOneKernel, kSharedMemory);
  }

  // The configuration's division, with the smallest part where its own has no room for its groups'
  // moments.
  static group_norm::Plan planned(const GroupNormArguments& args, const int64_t* config) {
    const group_norm::Plan plan = plan_of(args, config[kTileN], config[kSplitK]);
    return plan.bytes <= kSharedMemory ? plan : plan_of(args, 1, config[kSplitK]);
  }
};

}  // namespace onnxbolt
