// A convolution and 1x1 convolutions behind it in one persistent kernel for sm_90a (Bolt, section
// 3.1.1).
//
// How it works: TMA brings the first convolution's pixels by im2col, or as tiles of a matrix
// (sm90/persistent.h). The consumer warpgroups keep a tile's accumulators in registers, apply the
// epilogue, and use them as the operand of the next product; the last layer is stored as any tile
// is. Further layers' weights stay in shared memory, or come through the ring behind each tile's
// k-blocks.
//
// Constraints: fp16 or bf16; no groups and no clusters; a block has all channels of its pixels;
// weights' rows are multiples of 16 bytes.
#pragma once
#include "families/b2b_conv_sm90/shape.h"
#include "ops/conv/check.h"
#include "ops/conv_chain/arguments.h"
#include "sm90/convolution.h"

namespace onnxbolt {
namespace sm90 {

// As PersistentKernel, with the layers' vectors and weights, which are constants, loaded beside the
// first tiles.
template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    ConvChainKernel(const __grid_constant__ ConvChainParams params) {
  extern __shared__ __align__(1024) char shared[];
  const SharedMemory<K> memory{shared};
  const InnerMemory<K> inner(memory);
  if (threadIdx.x == 0) {
    PrefetchMaps<K>(params);
    for (int i = 1; i <= K::Layers::kLast; ++i) Prefetch(params.weights[i]);
    inner.loaded().init(1);
    InitializeBarriers<K>(memory.barriers());
  }
  __syncthreads();
  LaunchDependents();
  SplitRoles<K>(
      [&](int warp) {
        if (warp == 0 && ElectOne()) Producer<K, true, WeightsBehind<K>>(params, memory).run();
        if constexpr (K::Finish::kResidual) {
          if (warp == 1 && ElectOne()) ResidualProducer<K>(params, memory).run();
        }
        if (!K::Layers::kPass && warp == 2 && ElectOne()) LoadInnerWeights<K>(params, inner);
      },
      [&](int group) {
        LoadInnerVectors<K>(params, inner);
        SyncConsumers(K::kGroups);
        Consumer<K, ChainEnd<K>>(params, memory, group).run();
      });
}

}  // namespace sm90

// See ConvChainArguments. The channels of the layers behind the first are in the columns `warp`.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bConvSm90 : sm90::ConvChainShape<Config, ElementType, OutputType, Chains...> {
  using Shape = sm90::ConvChainShape<Config, ElementType, OutputType, Chains...>;
  using Layers = typename Shape::Layers;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::ConvChainKernel<Shape>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& [conv, chain] = *static_cast<const ConvChainArguments*>(arguments);
    if (const char* error = CheckLayout(conv, false)) return error;
    if (const char* error = Layers::check_layers(chain)) return error;
    if (conv.groups != 1) return "a chain of convolutions has no groups";
    if (const char* error = CheckExtents(chain.m, conv.k, chain.k)) return error;
    if (const char* error = sm90::CheckInputs<Shape>(conv, conv.c)) return error;
    if (const char* error = sm90::CheckIm2col(conv)) return error;
    if (chain.n[0] != conv.k)
      return "the first layer has another number of channels than the convolution";
    if (const char* error = check_behind(chain)) return error;
    if (chain.ldd * sizeof(Output) % 16 != 0 || !IsAligned(chain.d, 16))
      return "y or its pitch is not aligned to 16 bytes";
    return sm90::CheckProblem<Shape>(chain.m, chain.n[Layers::kLast], conv.c,
                                     int64_t(conv.r) * conv.s);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& [conv, all] = *static_cast<const ConvChainArguments*>(arguments);
    const ChainArguments chain = Layers::spread_params(all);
    if (chain.m * chain.n[Layers::kLast] == 0) return nullptr;
    sm90::ConvChainParams params{};
    if (const char* error = describe(params, conv, chain, launch.config)) return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return LaunchDependent(sm90::ConvChainKernel<Shape>,
                           sm90::GridSize<Shape>(params, launch.sm_count), Shape::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch,
                           Shape::kSharedMemory);
  }

 private:
  // The layers behind the first.
  static const char* check_behind(const ChainArguments& chain) {
    for (int i = 1; i < Layers::kLayers; ++i) {
      if (chain.n[i - 1] * sizeof(Element) % 16 != 0 || !IsAligned(chain.weights[i], 16))
        return "a layer's weights have rows that are not multiples of 16 bytes, as TMA needs";
    }
    return CheckOperands<typename Shape::Chain, Element>(chain.epilogue[Layers::kLast],
                                                         Row::at(kAlignC));
  }

  static const char* describe(sm90::ConvChainParams& params, const ConvArguments& conv,
                              const ChainArguments& chain, const int64_t* config) {
    const int taps = conv.r * conv.s;
    for (int i = 0; i < Layers::kLayers; ++i) {
      params.inner[i] = chain.epilogue[i];
      params.channels[i] = static_cast<int>(chain.n[i]);
    }
    if (const char* error =
            sm90::DescribeOutput<Shape>(params, chain.m, chain.n[Layers::kLast], conv.c, taps,
                                        chain.d, chain.ldd, chain.epilogue[Layers::kLast], config))
      return error;
    params.schedule = sm90::TileSchedule(static_cast<int>(CeilDivide(chain.m, Shape::kTileM)), 1,
                                         1);  // a tile has all channels
    if (const char* error = sm90::DescribeActivations<Shape>(params, conv)) return error;
    if (const char* error = sm90::DescribeWeights<Shape>(params, conv.filter, conv.k, taps, conv.c,
                                                         int64_t(taps) * conv.c))
      return error;
    return encode_weights(params, chain);
  }

  static const char* encode_weights(sm90::ConvChainParams& params, const ChainArguments& chain) {
    for (int i = 1; i < Layers::kLayers; ++i) {
      constexpr int64_t kSize = sizeof(Element);
      const int64_t depth = chain.n[i - 1];
      if (const char* error = sm90::EncodeTiled(
              params.weights[i], sm90::kOperandType<Element>, kSize, chain.weights[i],
              {{depth, 0, Layers::box(i)}, {chain.n[i], depth * kSize, Layers::columns(i)}}))
        return error;
    }
    return nullptr;
  }
};

}  // namespace onnxbolt
