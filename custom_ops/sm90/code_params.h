// Parameters of products of 8-bit codes that others have not: the zero point's offsets, and the
// order of the weights' rows.
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

// Fills in the offsets of a product whose pixels are all of one class.
template <class K>
const char* DescribeOffsets(CodeParams& params, const OffsetArguments& offsets) {
  params.offsets = offsets.values, params.classes_w = 1;
  if (K::kOffsets != (offsets.values != nullptr))
    return K::kOffsets ? "the offsets of the zero point of x are missing"
                       : "x has a zero point, and the kernel adds no offsets";
  return IsAligned(offsets.values, 16) ? nullptr : "the offsets are not aligned to 16 bytes";
}

template <class K>
const char* DescribeOffsets(CodeParams& params, const QuantizedConvArguments& conv) {
  if (const char* error = DescribeOffsets<K>(params, conv.offsets)) return error;
  const BorderAxis h =
      BorderOf(conv.p, conv.h, conv.r, conv.stride_h, conv.pad_top, conv.dilation_h);
  const BorderAxis w =
      BorderOf(conv.q, conv.w, conv.s, conv.stride_w, conv.pad_left, conv.dilation_w);
  params.border_h = h, params.border_w = w, params.classes_w = w.classes(conv.q);
  const int classes = K::kBorder ? h.classes(conv.p) * params.classes_w : 1;
  return !K::kOffsets || conv.offsets.classes == classes
             ? nullptr
             : "the offsets are of other classes of pixels than the kernel's";
}

// The tensor map of weights [columns, taps * depth]. Its rows are in the order of sm90/codes.h if
// results have 8 bits.
template <class K>
const char* DescribeCodeWeights(Params& params, const void* weights, int64_t columns, int taps,
                                int64_t depth, int64_t pitch) {
  using Element = typename K::Element;
  if constexpr (K::kPairsColumns)
    return EncodeTiled(params.b, kOperandType<Element>, 1, weights,
                       {{taps * depth, 0, K::kBoxK},
                        {2, pitch, 2},
                        {4, 4 * pitch, 4},
                        {2, 2 * pitch, 2},
                        {columns / kPairedColumns, kPairedColumns * pitch,
                         K::kTileN / K::kClusterM / kPairedColumns}});
  else
    return DescribeWeights<K>(params, weights, columns, taps, depth, pitch);
}

}  // namespace sm90
}  // namespace onnxbolt
