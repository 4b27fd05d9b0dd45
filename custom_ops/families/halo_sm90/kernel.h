// Convolution of our own for sm_90a from spatial tiles with their border, without im2col traffic.
//
// A tile with its border is loaded once, and each filter position is the same shared memory read
// from another pixel on (sm90/halo/geometry.h). Output channels are the rows of the product, pixels
// its columns, so that few channels fill a wgmma and shared-memory bandwidth is not the limit. The
// kernel is persistent and warp-specialized: two producer warps, and consumer warpgroups of 64
// output channels each. Cooperative warpgroups share a tile's pixels; in turns (pingpong) each has
// tiles of its own, and one's epilogue runs under another's main loop.
//
// Constraints: fp16 or bf16; dilation 1 and equal strides of 1 or 2; rows of x, filter and y are
// multiples of 16 bytes; the filter and a tile fit in shared memory.
#pragma once
#include <type_traits>

#include "families/halo_sm90/nchw.h"
#include "ops/conv/check.h"
#include "sm90/halo/launch.h"
#include "sm90/halo/persistent.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x * filter), strides 1 or 2, for fp16 and bf16. The columns of its
// configuration: sm90/halo/block.h.
template <class Config, class ElementType, class OutputType, class Chain>
struct HaloSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = halo::Plan<Config, Element, Output, Chain>;
  static constexpr int kSharedMemory = Plan::kSharedMemory;

  static const char* prepare() { return ReserveSharedMemory(kKernel, kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = halo::CheckConvolution(conv)) return error;
    if (const char* error = CheckLayout(conv, Plan::kNchw)) return error;
    if (Plan::kNchw) return CheckOperands<Chain, Element>(conv.epilogue, 1);
    if (const char* error = halo::CheckRows(conv, conv.epilogue)) return error;
    return CheckOperands<Chain, Element>(conv.epilogue, halo::kAlign);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (int64_t(conv.n) * conv.p * conv.q * conv.k == 0) return nullptr;
    halo::Params params{};
    halo::Describe<Plan>(params, conv, launch);
    if (const char* error = halo::CheckTile<Plan>(params, conv, launch.sm_count)) return error;
    if (const char* error = halo::EncodeMaps<Plan>(params, conv)) return error;
    return LaunchDependent(kKernel, halo::GridSize<Plan>(params, launch.sm_count), Plan::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch, kSharedMemory,
                           Plan::kCluster);
  }

 private:
  using Finish = std::conditional_t<Plan::kNchw, halo::NchwEpilogue<Plan>, halo::Epilogue<Plan>>;
  static constexpr auto kKernel = halo::HaloKernel<Plan, Finish, halo::Params>;
};

}  // namespace onnxbolt
