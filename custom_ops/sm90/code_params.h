// Parameters of products of 8-bit codes that others have not: the zero point's offsets.
#pragma once
#include "ops/quantized/arguments.h"
#include "sm90/convolution.h"

namespace onnxbolt {
namespace sm90 {

// Classes of an axis with `pixels` outputs: those whose first taps lie in front of the image, those
// whose last taps lie behind it, and all others; if these meet, each pixel is a class.
inline BorderAxis BorderOf(int pixels, int size, int filter, int stride, int pad, int dilation) {
  int first = 0, behind = 0;
  for (int p = 0; p < pixels; ++p) {
    first += p * stride < pad;
    behind += p * stride - pad + dilation * (filter - 1) > size - 1;
  }
  return first + behind >= pixels ? BorderAxis{pixels, pixels} : BorderAxis{first, pixels - behind};
}

inline BorderAxis BorderHeight(const ConvArguments& conv) {
  return BorderOf(conv.p, conv.h, conv.r, conv.stride_h, conv.pad_top, conv.dilation_h);
}

inline BorderAxis BorderWidth(const ConvArguments& conv) {
  return BorderOf(conv.q, conv.w, conv.s, conv.stride_w, conv.pad_left, conv.dilation_w);
}

// Checks offsets against the kernel's, which are of so many classes of pixels.
template <class K>
const char* CheckOffsets(const OffsetArguments& offsets, int classes) {
  if (K::kOffsets != (offsets.values != nullptr))
    return K::kOffsets ? "the offsets of the zero point of x are missing"
                       : "x has a zero point, and the kernel adds no offsets";
  if (K::kOffsets && offsets.classes != classes)
    return "the offsets are of other classes of pixels than the kernel's";
  return IsAligned(offsets.values, 16) ? nullptr : "the offsets are not aligned to 16 bytes";
}

template <class K>
const char* CheckOffsets(const QuantizedConvArguments& conv) {
  const bool padded = conv.pad_top || conv.pad_left || conv.pad_bottom || conv.pad_right;
  if (K::kOffsets && padded != K::kBorder)
    return padded ? "the image is padded, and the kernel has the same offsets for all pixels"
                  : "the image is not padded, and the kernel has offsets for its border";
  return CheckOffsets<K>(
      conv.offsets,
      K::kBorder ? BorderHeight(conv).classes(conv.p) * BorderWidth(conv).classes(conv.q) : 1);
}

// Fills in the offsets of a product whose pixels are all of one class.
inline void DescribeOffsets(CodeParams& params, const OffsetArguments& offsets) {
  params.offsets = offsets.values, params.classes_w = 1;
}

inline void DescribeOffsets(CodeParams& params, const QuantizedConvArguments& conv) {
  DescribeOffsets(params, conv.offsets);
  params.border_h = BorderHeight(conv), params.border_w = BorderWidth(conv);
  params.classes_w = params.border_w.classes(conv.q);
}

}  // namespace sm90
}  // namespace onnxbolt
