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

// Checks values that the chain reads or stores beside codes, in rows of 16 bytes.
template <class K, class Arguments>
const char* CheckValues(const Arguments& product) {
  using Chain = typename K::Chain;
  if (Chain::kStores != (product.values != nullptr))
    return Chain::kStores ? "there is no place for the values that the kernel stores"
                          : "the result is to be written as values, too, and the kernel does not";
  if (!IsAligned(product.values, 16)) return "stored values are not aligned to 16 bytes";
  if constexpr (Chain::kReadsValues) {
    constexpr int kSize = sizeof(typename Chain::Value);
    if (!IsAligned(product.epilogue.tensors[0], 16) ||
        product.epilogue.tensor_pitch[0] * kSize % 16 != 0)
      return "values that are added, or their pitch, are not aligned to 16 bytes";
  }
  return nullptr;
}

// Fills in what products of codes have besides, where all pixels are of one class.
template <class Arguments>
void DescribeMatrixOfCodes(CodeParams& params, const Arguments& product) {
  params.offsets = product.offsets.values, params.classes_w = 1, params.values = product.values;
}

inline void DescribeCodes(CodeParams& params, const QuantizedGemmArguments& gemm) {
  DescribeMatrixOfCodes(params, gemm);
}

inline void DescribeCodes(CodeParams& params, const QuantizedConvArguments& conv) {
  DescribeMatrixOfCodes(params, conv);
  params.border_h = BorderHeight(conv), params.border_w = BorderWidth(conv);
  params.classes_w = params.border_w.classes(conv.q);
}

}  // namespace sm90
}  // namespace onnxbolt
