// Convolution of 8-bit codes for sm_90a in NHWC: the persistent implicit GEMM of sm90/persistent.h
// with the operands, sums and epilogue of codes (sm90/codes.h).
//
// Constraints: rows of x, the filter and y are multiples of 16 bytes, as TMA needs; no groups whose
// channels a k-block would exceed.
#pragma once
#include "ops/conv/check.h"
#include "sm90/code_params.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c / groups] + offsets[class of (p, q), k]).
// Border: offsets differ by pixels, since padding is code 0 and not the zero point.
template <class Config, class ElementType, class OutputType, class ChainType, bool Offsets = false,
          bool Border = false>
struct QuantizedConvSm90 {
  using Shape = sm90::CodesShape<Config, ElementType, OutputType, ChainType, Offsets, Border>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = Shape::kSharedMemory;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, true>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    if (const char* error = sm90::CheckGroups<Shape>(conv)) return error;
    if (conv.groups > 1 && depth(conv) % Shape::kTileK != 0)
      return "a k-block exceeds the channels of a group";
    if (const char* error =
            CheckExtents(sm90::Rows(conv), conv.k, int64_t(conv.r) * conv.s * conv.c))
      return error;
    if (const char* error = sm90::CheckInputs<Shape>(conv, depth(conv))) return error;
    if (const char* error = CheckLayout(conv, false)) return error;
    if (const char* error = sm90::CheckRows<Shape>(conv)) return error;
    if (const char* error = sm90::CheckIm2col(conv)) return error;
    if (const char* error = CheckOperands<ChainType, Element>(conv.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(sm90::Rows(conv), conv.k, depth(conv),
                                     int64_t(conv.r) * conv.s);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.k == 0) return nullptr;
    const int taps = conv.r * conv.s;
    sm90::CodeParams params{};
    if (const char* error = sm90::DescribeActivations<Shape>(params, conv)) return error;
    if (const char* error =
            sm90::DescribeOutput<Shape>(params, sm90::Rows(conv), conv.k, depth(conv), taps, conv.y,
                                        conv.y_pitch, conv.epilogue, launch.config))
      return error;
    if (const char* error = sm90::DescribeCodeWeights<Shape>(
            params, conv.filter, conv.k, taps, depth(conv), int64_t(taps) * depth(conv)))
      return error;
    if (const char* error = sm90::DescribeOffsets<Shape>(params, conv)) return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, true>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) == 16 && Row::at(kAlignB) == 16 &&
                    Row::at(kAlignC) * sizeof(Output) >= 16,
                "TMA moves rows of 16 bytes");

  static int depth(const ConvArguments& conv) { return conv.c / conv.groups; }
};

}  // namespace onnxbolt
