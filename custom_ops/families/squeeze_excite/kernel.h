// Squeeze-and-excitation in NHWC as one kernel for every architecture: the mean over each image,
// two small products with activations, and the gated image.
//
// A cluster takes a few images, each block a part of their channels. So a block has the means of
// its channels by itself, its share of the squeezed channels is exchanged once through the
// cluster's shared memory, and it gates the channels that it still holds. Sums are in a fixed
// order: results are the same bits on every run. Without clusters in hardware a cluster is one
// block.
//
// Constraints: channels and squeezed channels are padded to accesses of 16 bytes; an image's
// channels fit in the cluster's shared memory.
#pragma once
#include "families/squeeze_excite/block.h"
#include "ops/squeeze_excite/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace squeeze_excite {

// A cluster's blocks lie in one part of the GPU, whose SMs are no multiple of them: with room for
// two on each SM, all run at once.
constexpr int kBlocksOfSm = 2;

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Squeeze, class Gate, class Chain, int Width, int Threads>
static __global__ void __launch_bounds__(Threads, kBlocksOfSm)
    run(const __grid_constant__ Params params) {
  extern __shared__ float4 shared_memory[];
  LaunchDependents();
  Block<Element, Squeeze, Gate, Chain, Width> block(params,
                                                    reinterpret_cast<float*>(shared_memory));
  block.load_biases();
  WaitForPredecessors();
  block.compute_means();
  block.compute_shares();
  ArriveAtCluster();
  WaitForCluster();
  block.compute_squeezed();
  ArriveAtCluster();  // the others may still read this block's shares: it must not end before they
                      // have
  __syncthreads();
  block.compute_gates();
  __syncthreads();
  block.apply_gates();
  WaitForCluster();
}

}  // namespace squeeze_excite

// y[n, p, c] = x[n, p, c] * gate(w2[c, s] squeeze(w1[s, c] mean over p of x + b1) + b2). One kernel
// serves every shape of an element type and pair of activations: the width of accesses and the
// division of the work are picked at launch.
template <class Config, class ElementType, class Squeeze, class Gate, class... Steps>
struct SqueezeExcite {
  using Row = Config;
  using Element = ElementType;
  using Output = ElementType;
  using Chain = epilogue::Chain<Steps...>;
  static_assert(Chain::kVectors == 0, "the epilogue has no vectors");
  static constexpr int kThreads = Row::at(kTileM);
  static constexpr bool kHasClusters = ArchOf<Row>::kClusters;
  static constexpr int kSharedMemory = ArchOf<Row>::kSharedMemory;
  static constexpr int kWidest = 16 / sizeof(Element);

  // The kernel of a width in channels.
  template <int Width>
  static constexpr Variant<squeeze_excite::Params, 1> variant() {
    return {Width, {squeeze_excite::run<Element, Squeeze, Gate, Chain, Width, kThreads>}};
  }

  static const char* prepare() { return Variants<SqueezeExcite>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const SqueezeExciteArguments*>(arguments);
    if (args.squeezed < 1 || args.squeezed % kWidest != 0)
      return "the squeezed channels are not padded to accesses of 16 bytes";
    if (!IsAligned(args.excite, 16)) return "the second weight is not aligned to 16 bytes";
    if (const char* error = CheckOperands<Chain, Element>(args.epilogue, 1)) return error;
    if (const char* error =
            CheckExtents(int64_t(args.n) * squeeze_excite::kMostBlocks, args.channels, args.pixels))
      return error;
    const int64_t most = int64_t(squeeze_excite::kMostImages) * args.pixels * args.channels;
    if (most > INT32_MAX) return "an image is too large";
    const squeeze_excite::Plan plan = make_plan(args, widest(args).width, 1);
    return plan.bytes <= kSharedMemory ? nullptr : "too many channels for shared memory";
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const SqueezeExciteArguments*>(arguments);
    if (args.n == 0 || args.channels == 0) return nullptr;
    const auto& variant = widest(args);
    const squeeze_excite::Params params{args, make_plan(args, variant.width, launch.sm_count)};
    const squeeze_excite::Plan& plan = params.plan;
    const int clusters = (args.n + plan.images - 1) / plan.images;
    return LaunchDependent(variant.functions[0], clusters * plan.blocks, kThreads, launch.stream,
                           params, ArchOf<Row>::kDependentLaunch, plan.bytes, plan.blocks);
  }

 private:
  static squeeze_excite::Plan make_plan(const SqueezeExciteArguments& args, int width,
                                        int sm_count) {
    const int most_blocks = kHasClusters ? squeeze_excite::kMostBlocks : 1;
    constexpr int kReserved = 1024;  // bytes of each block that the system reserves
    constexpr int kRoom = kSharedMemory / squeeze_excite::kBlocksOfSm - kReserved;
    return squeeze_excite::MakePlan<Element>(args, width, kThreads, kRoom, most_blocks, sm_count);
  }

  static const auto& widest(const SqueezeExciteArguments& args) {
    return Variants<SqueezeExcite>::widest([&](int width) {
      const size_t bytes = width * sizeof(Element);
      return args.channels % width == 0 && args.x_pitch % width == 0 && args.y_pitch % width == 0 &&
             IsAligned(args.x, bytes) && IsAligned(args.y, bytes) &&
             IsAligned(args.squeeze, bytes) && !CheckOperands<Chain, Element>(args.epilogue, width);
    });
  }
};

}  // namespace onnxbolt
