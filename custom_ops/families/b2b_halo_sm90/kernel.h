// A convolution and 1x1 convolutions behind it in one persistent kernel for sm_90a (Bolt, section
// 3.1.1).
//
// How it works: the first convolution is computed from spatial tiles with their border
// (sm90/halo/persistent.h). Its tiles then go through the further layers in shared memory
// (families/b2b_halo_sm90/epilogue.h).
//
// Constraints: fp16 or bf16; dilation 1 and equal strides of 1 or 2; no groups, at most three
// layers, no residual before the last one, and no clusters.
#pragma once
#include "families/b2b_halo_sm90/epilogue.h"
#include "ops/conv/check.h"
#include "ops/conv_chain/arguments.h"
#include "sm90/halo/launch.h"
#include "sm90/halo/persistent.h"

namespace onnxbolt {

// See ConvChainArguments. The columns of its configuration: sm90/halo/block.h and
// halo::FurtherLayers.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bHaloSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = halo::ChainPlan<Config, Element, Output, Chains...>;
  using Layers = typename Plan::Layers;
  static constexpr int kSharedMemory = Plan::kSharedMemory;

  static const char* prepare() { return ReserveSharedMemory(kKernel, kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& [conv, chain] = *static_cast<const ConvChainArguments*>(arguments);
    if (const char* error = halo::CheckConvolution(conv)) return error;
    if (const char* error = CheckLayout(conv, false)) return error;
    if (const char* error = halo::CheckRows(conv, chain.epilogue[Layers::kLast])) return error;
    if (conv.groups != 1) return "a chain's convolution has no groups";
    if (chain.layers != Layers::kLayers) return "the kernel is for another number of layers";
    if (chain.n[0] != conv.k || conv.k > Plan::kTileChannels)
      return "the first layer has more output channels than the kernel";
    for (int i = 1; i < Layers::kLayers; ++i) {
      if (chain.n[i] < 1 || chain.n[i] > Layers::blocks(i) * halo::kChannels)
        return "a layer has more output channels than the kernel";
      if (chain.n[i] % halo::kAlign != 0 || !IsAligned(chain.weights[i], 16))
        return "a layer's weights or channels are not aligned to 16 bytes";
    }
    return check_operands(chain, std::make_index_sequence<Layers::kLast>());
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& [conv, chain] = *static_cast<const ConvChainArguments*>(arguments);
    if (int64_t(conv.n) * conv.p * conv.q == 0) return nullptr;
    halo::ChainParams params{};
    halo::Describe<Plan>(params, conv, launch);
    if (const char* error = halo::CheckTile<Plan>(params, conv, launch.sm_count)) return error;
    if (const char* error = halo::EncodeMaps<Plan>(params, conv)) return error;
    if (const char* error = describe_layers(params, chain)) return error;
    return LaunchDependent(kKernel, halo::GridSize<Plan>(params, launch.sm_count), Plan::kThreads,
                           launch.stream, params, ArchOf<Row>::kDependentLaunch, kSharedMemory);
  }

 private:
  static constexpr auto kKernel =
      halo::HaloKernel<Plan, halo::FurtherProducts<Plan>, halo::ChainParams>;

  template <size_t... Inner>
  static const char* check_operands(const ChainArguments& chain, std::index_sequence<Inner...>) {
    const char* errors[] = {
        CheckOperands<typename Plan::template ChainOf<Inner>, Element>(chain.epilogue[Inner], 1)...,
        CheckOperands<typename Plan::Chain, Element>(chain.epilogue[Layers::kLast], halo::kAlign)};
    for (const char* error : errors) {
      if (error) return error;
    }
    return nullptr;
  }

  static const char* describe_layers(halo::ChainParams& params, const ChainArguments& chain) {
    constexpr int kParams[] = {Chains::kParams...}, kBytes = sizeof(Element);
    const float* next_params = chain.epilogue[0].params;
    for (int i = 0; i < Layers::kLayers; next_params += kParams[i++]) {
      EpilogueArguments& epilogue = i == Layers::kLast ? params.epilogue : params.inner[i];
      epilogue = chain.epilogue[i];
      std::copy_n(next_params, kParams[i], epilogue.params);
      if (i == Layers::kLast)
        params.k = static_cast<int>(chain.n[i]);
      else
        params.inner_channels[i] = static_cast<int>(chain.n[i]);
      if (i == 0) continue;
      const char* error = sm90::EncodeTiled(
          params.weights[i - 1], sm90::kOperandType<Element>, kBytes, chain.weights[i],
          {{chain.n[i - 1], 0, halo::kChannels},
           {chain.n[i], chain.n[i - 1] * kBytes, halo::kChannels}});
      if (error) return error;
    }
    return nullptr;
  }
};

}  // namespace onnxbolt
