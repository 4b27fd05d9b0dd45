// Convolution of our own for sm_90a in NHWC: an implicit GEMM whose rows are output pixels and
// whose columns are output channels.
//
// Persistent and warp-specialized (sm90/persistent.h): a producer warpgroup brings the pixels of
// each filter position by TMA's im2col copies, or tiles of a matrix where the convolution is a
// GEMM; one to three consumer warpgroups multiply with wgmma and run the epilogue. y may be NHWC,
// NCHW, both, or the mean over each image.
//
// Constraints: rows of x, filter and y are multiples of 16 bytes; a tile's output channels belong
// to one group; padding and the filter's reach fit TMA's im2col window of 128 pixels.
#pragma once
#include "ops/conv/check.h"
#include "sm90/convolution.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c / groups]). float is multiplied as TF32,
// rounded by TMA on its way into shared memory. Both: y is written as [n, k, p, q], too (see
// ConvArguments). Where the chain ends with Mean, y[n, k] are the means over p and q.
template <class Config, class ElementType, class OutputType, class ChainType, bool Both = false>
struct ConvSm90 {
  using Mean = epilogue::Without<epilogue::Mean, ChainType>;
  using Rows =
      std::conditional_t<Mean::kFound,
                         sm90::MeanShape<Config, ElementType, OutputType, typename Mean::Pointwise>,
                         sm90::KernelShape<Config, ElementType, OutputType, ChainType>>;
  using Shape =
      std::conditional_t<Both, sm90::BothShape<Config, ElementType, OutputType, ChainType>, Rows>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = Shape::kSharedMemory;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, true>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = sm90::CheckGroups<Shape>(conv)) return error;
    if (const char* error =
            CheckExtents(sm90::ProductRows<Shape>(conv), conv.k, int64_t(conv.r) * conv.s * conv.c))
      return error;
    if (const char* error = check_image(conv)) return error;
    if (const char* error = sm90::CheckInputs<Shape>(conv, depth(conv))) return error;
    if (const char* error = check_output(conv)) return error;
    if (const char* error = sm90::CheckIm2col(conv)) return error;
    if (const char* error = CheckOperands<ChainType, Element>(conv.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(sm90::ProductRows<Shape>(conv), conv.k, depth(conv),
                                     int64_t(conv.r) * conv.s);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.k == 0) return nullptr;
    const int taps = conv.r * conv.s;
    sm90::Params params{};
    if (const char* error = sm90::DescribeActivations<Shape>(params, conv)) return error;
    if (const char* error = sm90::DescribeOutput<Shape>(
            params, sm90::ProductRows<Shape>(conv), conv.k, depth(conv), taps, conv.rows(),
            conv.row_pitch(), conv.epilogue, launch.config))
      return error;
    params.y = conv.y, params.y_pitch = conv.y_pitch, params.plane_columns = conv.k - conv.padding;
    if (const char* error = sm90::DescribeWeights<Shape>(params, conv.filter, conv.k, taps,
                                                         depth(conv), int64_t(taps) * depth(conv)))
      return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, true>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    (Shape::kNchw || Row::at(kAlignC) * sizeof(Element) == 16),
                "TMA moves rows of 16 bytes");

  static int depth(const ConvArguments& conv) { return conv.c / conv.groups; }

  static const char* check_image(const ConvArguments& conv) {
    if (!Shape::kMean || conv.n == 0) return nullptr;
    const int64_t pixels = int64_t(conv.p) * conv.q;
    return pixels >= 1 && pixels <= sm90::kImageRows
               ? nullptr
               : "the kernel's means are of images of 1 to 64 pixels";
  }

  static const char* check_output(const ConvArguments& conv) {
    if (const char* error = CheckLayout(conv, Shape::kNchw, Both)) return error;
    return Shape::kNchw ? nullptr : sm90::CheckRows<Shape>(conv);
  }
};

}  // namespace onnxbolt
