// Depthwise convolution of 8-bit codes in NHWC for every architecture: channelwise/
// convolution.h, with weights of signed integers, and with the zero point of x subtracted from
// what lies inside of the image. So they need no offsets, and no classes of pixels.
//
// Constraints: those of channelwise/convolution.h; sums are integers that fp32 has.
#pragma once
#include "channelwise/convolution.h"
#include "epilogue/codes.h"
#include "ops/quantized/arguments.h"

namespace onnxbolt {

template <class Config, class ElementType, class OutputType, class Chain>
struct QuantizedDepthwise : depthwise::Convolution<Config, ElementType, OutputType, Chain> {
  using Base = depthwise::Convolution<Config, ElementType, OutputType, Chain>;

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    if (int64_t(conv.r) * conv.s * kLargestProduct >= 1 << 24)
      return "the filter has more taps than sums in fp32 are exact for";
    return Base::can_implement(&static_cast<const ConvArguments&>(conv));
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const QuantizedConvArguments*>(arguments);
    return Base::run(conv, launch, conv.offsets.zero);
  }

 private:
  static constexpr int kLargestProduct = 255 * 128;
};

}  // namespace onnxbolt
