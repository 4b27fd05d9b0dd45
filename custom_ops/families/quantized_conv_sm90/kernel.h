// Convolution of 8-bit codes for sm_90a in NHWC: the persistent implicit GEMM of sm90/persistent.h
// with the operands, sums and epilogue of codes (sm90/codes.h).
//
// Constraints: rows of x, the filter and y are multiples of 16 bytes, as TMA needs; one group.
#pragma once
#include "sm90/code_params.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c] + offsets[class of (p, q), k]). Offsets
// differ by pixels where the image is padded, since padding is code 0 and not the zero point.
template <class Config, class ElementType, class OutputType, class ChainType>
struct QuantizedConvSm90
    : sm90::ConvolutionFunctions<sm90::CodesShape<Config, ElementType, OutputType, ChainType>> {
  using Shape = sm90::CodesShape<Config, ElementType, OutputType, ChainType>;

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    if (const char* error = sm90::CheckGroups<Shape>(conv)) return error;
    return sm90::CheckConvolution<Shape>(conv, [&] {
      if (const char* error = CheckLayout(conv, false)) return error;
      if (const char* error = sm90::CheckRows<Shape>(conv)) return error;
      if (const char* error = sm90::CheckValues<Shape>(conv)) return error;
      return sm90::CheckOffsets<Shape>(conv);
    });
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    return sm90::LaunchConvolution<Shape, sm90::TileEnd<Shape>>(
        conv, conv.y_pitch, launch,
        [&](sm90::CodeParams& params) { sm90::DescribeCodes(params, conv); });
  }
};

}  // namespace onnxbolt
