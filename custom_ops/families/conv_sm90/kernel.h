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
#include "sm90/convolution.h"

namespace onnxbolt {

// The constants of a kernel that writes rows or, where the chain ends with Mean, means.
template <class Config, class Element, class Output, class Chain,
          class Mean = epilogue::Without<epilogue::Mean, Chain>>
using RowsOrMeans =
    std::conditional_t<Mean::kFound,
                       sm90::MeanShape<Config, Element, Output, typename Mean::Pointwise>,
                       sm90::KernelShape<Config, Element, Output, Chain>>;

// The constants of ConvSm90's kernel.
template <class Config, class Element, class Output, class Chain, bool Both>
using ConvShapeOf = std::conditional_t<Both, sm90::BothShape<Config, Element, Output, Chain>,
                                       RowsOrMeans<Config, Element, Output, Chain>>;

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c / groups]). float is multiplied as TF32,
// rounded by TMA on its way into shared memory. Both: y is written as [n, k, p, q], too (see
// ConvArguments). Where the chain ends with Mean, y[n, k] are the means over p and q.
template <class Config, class ElementType, class OutputType, class ChainType, bool Both = false>
struct ConvSm90
    : sm90::ConvolutionFunctions<ConvShapeOf<Config, ElementType, OutputType, ChainType, Both>> {
  using Shape = ConvShapeOf<Config, ElementType, OutputType, ChainType, Both>;
  using Output = OutputType;

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = sm90::CheckGroups<Shape>(conv)) return error;
    if (const char* error = check_image(conv)) return error;
    return sm90::CheckConvolution<Shape>(conv, [&] { return check_output(conv); });
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    return sm90::LaunchConvolution<Shape, sm90::TileEnd<Shape>>(
        conv, conv.row_pitch(), launch, [&](sm90::Params& params) {
          params.y = conv.y, params.y_pitch = conv.y_pitch;
          params.plane_columns = conv.k - conv.padding;
        });
  }

 private:
  static_assert(Config::at(kAlignA) * sizeof(ElementType) == 16 &&
                    Config::at(kAlignB) * sizeof(ElementType) == 16 &&
                    (Shape::kNchw || Config::at(kAlignC) * sizeof(ElementType) == 16),
                "TMA moves rows of 16 bytes");

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
