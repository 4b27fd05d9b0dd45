// A stem convolution and a 1x1 convolution behind it in one kernel for sm_90a (Bolt, section
// 3.1.1).
//
// How it works: the first convolution is computed from NCHW pixels (sm90/stem/kernel.h). The
// accumulators of each unit go through their epilogue in registers and are multiplied by the second
// layer's weights, which stay in shared memory.
//
// Constraints: fp16 or bf16 products; exactly two layers, columns in multiples of 16, no groups,
// dilations or residuals.
#pragma once
#include "ops/conv_chain/arguments.h"
#include "sm90/b2b/next_product.h"
#include "sm90/stem/kernel.h"

namespace onnxbolt {
namespace stem {

// Columns of its configuration: as Plan, and instruction[2] = the 1x1 convolution's output
// channels.
template <class Config, class ElementType, class OutputType, class FirstChain, class LastChain>
struct ChainPlan : Plan<Config, ElementType, OutputType, LastChain, Config::at(kInstructionK)> {
  using Base = Plan<Config, ElementType, OutputType, LastChain, Config::at(kInstructionK)>;
  using Inner = FirstChain;
  static constexpr int kColumns =
      Config::at(kInstructionK);  // columns of the second product; Base::kN are the first one's

  static constexpr int kBox = sm90::BoxColumns<ElementType>(Base::kN), kBoxes = Base::kN / kBox;
  static constexpr int kBoxBytes = kColumns * kBox * sizeof(ElementType);
  static constexpr int kNextOffset = RoundUp(Base::kSharedMemory, 1024),
                       kInnerOffset = kNextOffset + kBoxes * kBoxBytes;
  static constexpr int kBarrierOffset = kInnerOffset + Inner::kVectors * Base::kN * sizeof(float);
  static constexpr int kSharedMemory = kBarrierOffset + sizeof(sm90::Barrier);

  static_assert(Base::kN % 16 == 0 && kColumns % 16 == 0,
                "one instruction takes 16 values along k");
  static_assert(FirstChain::kTensors == 0, "an inner layer has no residual");
  static_assert(FirstChain::kParams + LastChain::kParams <= kMaxParams,
                "both layers together have at most kMaxParams parameters");
  static_assert(kSharedMemory <= ArchOf<Config>::kSharedMemory, "no room for the second weights");
};

struct ChainParams : Params {
  CUtensorMap next;  // the second weights [channels, k]
  int channels;      // channels of the output
  EpilogueArguments inner;
};

// The second product of each unit, and its epilogue.
template <class Plan>
class ChainEnd {
 public:
  using Params = ChainParams;
  using Element = typename Plan::Element;

  // All threads: vectors, with zeros beyond the first layer's channels; one: the second weights,
  // which the barrier tells of.
  __device__ static void begin(const Params& params, const Memory<Plan>& memory) {
    for (int i = threadIdx.x; i < Plan::Inner::kVectors * Plan::kN; i += Plan::kThreads) {
      const int column = i % Plan::kN;
      vectors(memory)[i] = column < params.k ? params.inner.vectors[i / Plan::kN][column] : 0.f;
    }
    if (threadIdx.x != 0) return;
    sm90::Barrier& loaded = barrier(memory);
    loaded.init(1);
    sm90::FenceBarrierInit();
    loaded.arrive_and_expect(Plan::kBoxes * Plan::kBoxBytes);
    for (int box = 0; box < Plan::kBoxes; ++box)
      sm90::Load2D(params.next, loaded, weights(memory) + box * Plan::kBoxBytes, box * Plan::kBox,
                   0, sm90::Cache::kEvictLast);
  }

  __device__ ChainEnd(const Params& params, const Memory<Plan>& memory, int group, int)
      : params_(params),
        memory_(memory),
        epilogue_(memory.epilogue(group), params.epilogue, 1 + group) {
    epilogue_.load_vectors(0, params.channels);
    barrier(memory).wait(0);
  }

  __device__ void finish(const sm90::Accumulators<Plan::kN>& sums, const ImageOutput& to) {
    sm90::Operand<Plan::kN> operand;
    sm90::FinishAsOperand<typename Plan::Inner, Element, Plan::kN>(sums, vectors(memory_),
                                                                   params_.inner.params, operand);
    sm90::Accumulators<Plan::kColumns> next;
    sm90::MultiplyOperand<Element, Plan::kN, Plan::kColumns>(operand, weights(memory_),
                                                             Plan::kBoxBytes, next);
    Store<Plan>(next, epilogue_, to, params_.channels);
  }

  __device__ void drain() { epilogue_.drain(); }

 private:
  __device__ static char* weights(const Memory<Plan>& memory) {
    return memory.base + Plan::kNextOffset;
  }
  __device__ static float* vectors(const Memory<Plan>& memory) {
    return reinterpret_cast<float*>(memory.base + Plan::kInnerOffset);
  }
  __device__ static sm90::Barrier& barrier(const Memory<Plan>& memory) {
    return *reinterpret_cast<sm90::Barrier*>(memory.base + Plan::kBarrierOffset);
  }

  const Params& params_;
  const Memory<Plan>& memory_;
  sm90::Epilogue<typename Plan::Finish> epilogue_;
};

}  // namespace stem

// See ConvChainArguments; two layers.
template <class Config, class ElementType, class OutputType, class FirstChain, class LastChain>
struct B2bStemSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = stem::ChainPlan<Config, Element, Output, FirstChain, LastChain>;
  static constexpr int kSharedMemory = Plan::kSharedMemory;

  static const char* prepare() {
    if (const char* error = ReserveSharedMemory(kernel<float>(), kSharedMemory)) return error;
    return ReserveSharedMemory(kernel<Element>(), kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& [conv, chain] = *static_cast<const ConvChainArguments*>(arguments);
    if (chain.layers != 2) return "the kernel is for two layers";
    if (const char* error = stem::Check<Plan>(conv, chain.n[1])) return error;
    if (conv.k > Plan::kN || chain.n[1] > Plan::kColumns)
      return "a layer has more channels than the kernel";
    if (conv.k % 8 != 0 || !IsAligned(chain.weights[1], 16))
      return "the second weights have rows that are not multiples of 16 bytes, as TMA needs";
    if (const char* error = CheckOperands<FirstChain, Element>(conv.epilogue, 1)) return error;
    return CheckOperands<LastChain, Element>(chain.epilogue[1], 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& [conv, chain] = *static_cast<const ConvChainArguments*>(arguments);
    if (chain.m * chain.n[1] == 0) return nullptr;
    stem::ChainParams params{};
    stem::Describe<Plan>(conv, params);
    params.inner = conv.epilogue, params.epilogue = chain.epilogue[1],
    params.channels = static_cast<int>(chain.n[1]);
    std::copy_n(chain.epilogue[0].params, FirstChain::kParams, params.inner.params);
    std::copy_n(chain.epilogue[0].params + FirstChain::kParams, LastChain::kParams,
                params.epilogue.params);
    if (const char* error = stem::EncodeOutput<Plan>(conv, chain.n[1], params.y)) return error;
    constexpr int64_t kSize = sizeof(Element);
    if (const char* error = sm90::EncodeTiled(
            params.next, sm90::kOperandType<Element>, kSize, chain.weights[1],
            {{conv.k, 0, Plan::kBox}, {chain.n[1], conv.k * kSize, Plan::kColumns}}))
      return error;
    return LaunchDependent(
        conv.x_nchw == OnnxType<float>::value ? kernel<float>() : kernel<Element>(),
        std::min(params.tiles, launch.sm_count), Plan::kThreads, launch.stream, params,
        ArchOf<Row>::kDependentLaunch, kSharedMemory);
  }

 private:
  template <class Pixel>
  static auto kernel() {
    return stem::StemKernel<Plan, stem::ChainEnd<Plan>, Pixel>;
  }
};

}  // namespace onnxbolt
