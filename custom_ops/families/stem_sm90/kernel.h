// A model's first convolution for sm_90a: few input channels, read from NCHW as they are, in fp32
// or the kernel's type; the output is NHWC.
//
// Each warpgroup has tiles of its own; all share the weights, which stay in shared memory. A
// warpgroup copies the pixels under a tile into shared memory as they are, reads wgmma's operand A
// from there into registers, and stores its results while other warpgroups multiply
// (sm90/stem/kernel.h).
//
// Constraints: fp16 or bf16 products; the filter's extents and strides are the configuration's; no
// groups, no dilation and no residual; output channels are multiples of 16 bytes. An epilogue may
// end with codes of 8 bits.
#pragma once
#include "ops/conv/arguments.h"
#include "sm90/stem/kernel.h"

namespace onnxbolt {
namespace stem {

// The sums of a unit are the output's, but for the epilogue.
template <class Plan>
class ConvEnd {
 public:
  using Params = stem::Params;

  __device__ static void begin(const Params&, const Memory<Plan>&) {}

  __device__ ConvEnd(const Params& params, const Memory<Plan>& memory, int group, int channel)
      : epilogue_(memory.epilogue(group), params.epilogue, 1 + group), channels_(params.k) {
    epilogue_.load_vectors(channel, channels_);
  }

  __device__ void finish(const sm90::Accumulators<Plan::kN>& sums, const ImageOutput& to) {
    Store<Plan>(sums, epilogue_, to, channels_);
  }

  __device__ void drain() { epilogue_.drain(); }

 private:
  typename Plan::Epilogue epilogue_;
  const int channels_;
};

}  // namespace stem

// y[n, p, q, k] = epilogue(x[n, c, h, w] * w[k, r, s, c]) for fp16 and bf16. The columns of its
// configuration: sm90/stem/plan.h.
template <class Config, class ElementType, class OutputType, class Chain>
struct StemSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = stem::Plan<Config, Element, Output, Chain>;
  static constexpr int kSharedMemory = Plan::kSharedMemory;

  static const char* prepare() {
    if (const char* error = ReserveSharedMemory(kernel<float>(), kSharedMemory)) return error;
    return ReserveSharedMemory(kernel<Element>(), kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = stem::Check<Plan>(conv, conv.k)) return error;
    return CheckOperands<Chain, Element>(conv.epilogue, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (int64_t(conv.n) * conv.p * conv.q * conv.k == 0) return nullptr;
    stem::Params params{};
    stem::Describe<Plan>(conv, params);
    params.epilogue = conv.epilogue;
    if (const char* error = stem::EncodeOutput<Plan>(conv, conv.k, params.y)) return error;
    const int channel_blocks = CeilDivide(conv.k, Plan::kN);
    const dim3 grid(std::min(params.tiles, std::max(launch.sm_count / channel_blocks, 1)),
                    channel_blocks);
    return LaunchDependent(
        conv.x_nchw == OnnxType<float>::value ? kernel<float>() : kernel<Element>(), grid,
        Plan::kThreads, launch.stream, params, ArchOf<Row>::kDependentLaunch, kSharedMemory);
  }

 private:
  template <class Pixel>
  static auto kernel() {
    return stem::StemKernel<Plan, stem::ConvEnd<Plan>, Pixel>;
  }
};

}  // namespace onnxbolt
