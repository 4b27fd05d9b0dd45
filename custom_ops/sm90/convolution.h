// Convolutions as implicit GEMMs whose rows are output pixels: the shapes that TMA's im2col can
// gather, the parameters, and the host's part of their kernels.
#pragma once
#include "ops/conv/check.h"
#include "sm90/persistent.h"

namespace onnxbolt {
namespace sm90 {

// Output pixels.
inline int64_t Rows(const ConvArguments& conv) { return int64_t(conv.n) * conv.p * conv.q; }

// Rows of the product: the output pixels, or 64 for each image if the kernel averages images.
template <class K>
int64_t ProductRows(const ConvArguments& conv) {
  return K::kMean ? int64_t(conv.n) * kImageRows : Rows(conv);
}

// True if the pixels are the rows of a matrix as they lie in memory.
inline bool IsMatrix(const ConvArguments& conv) {
  return conv.r == 1 && conv.s == 1 && conv.stride_h == 1 && conv.stride_w == 1 &&
         conv.p == conv.h && conv.q == conv.w && conv.pad_top == 0 && conv.pad_left == 0;
}

inline Im2colAxis WidthOf(const ConvArguments& conv) {
  return {conv.w, conv.stride_w, -conv.pad_left, conv.pad_right - conv.dilation_w * (conv.s - 1)};
}

inline Im2colAxis HeightOf(const ConvArguments& conv) {
  return {conv.h, conv.stride_h, -conv.pad_top, conv.pad_bottom - conv.dilation_h * (conv.r - 1)};
}

// The fields of an im2col tensor map and of its copies (CUDA driver API: cuTensorMapEncodeIm2col,
// rank 4).
inline const char* CheckIm2col(const ConvArguments& conv) {
  if (IsMatrix(conv)) return nullptr;
  for (const Im2colAxis& axis : {WidthOf(conv), HeightOf(conv)}) {
    for (int corner : {axis.lower, axis.upper}) {
      if (corner < -128 || corner > 127)
        return "padding, or the filter's reach, exceeds the 128 pixels of TMA's im2col";
    }
  }
  if (conv.dilation_h * (conv.r - 1) > 255 || conv.dilation_w * (conv.s - 1) > 255)
    return "the filter exceeds TMA's 256 pixels";
  return conv.stride_h <= 8 && conv.stride_w <= 8 ? nullptr : "a stride exceeds TMA's 8";
}

// Checks groups: a k-block that reaches beyond its group reads channels of the next one, and meets
// weights of zero.
template <class K>
const char* CheckGroups(const ConvArguments& conv) {
  if (conv.groups < 1 || conv.c % conv.groups != 0 || conv.k % conv.groups != 0)
    return "c and k have to be multiples of groups";
  if (K::kCodes && conv.groups > 1) return "codes are convolved in one group";
  if (conv.groups > 1 && conv.k / conv.groups % (K::kTileN * K::kClusterN) != 0)
    return "a tile's output channels have to belong to one group";
  return nullptr;
}

// Checks rows of y against the accesses of 16 bytes with which they are stored.
template <class K>
const char* CheckRows(const ConvArguments& conv) {
  constexpr int kC = K::Row::at(kAlignC);
  if (conv.k % kC != 0 || conv.row_pitch() % kC != 0 ||
      conv.row_pitch() * sizeof(typename K::Output) % 16 != 0 || !IsAligned(conv.rows(), 16))
    return "y, its pitch or k is not aligned to align_c elements";
  return nullptr;
}

// Checks the tensors that TMA reads against its accesses of 16 bytes; `depth`: channels of a group.
template <class K>
const char* CheckInputs(const ConvArguments& conv, int depth) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(typename K::Element));
  if (depth % kWide != 0 || conv.x_pitch % kWide != 0 || !IsAligned(conv.x, 16))
    return "x, its pitch or a group's c is not aligned to align_a elements";
  return IsAligned(conv.filter, 16) ? nullptr : "the filter is not aligned to align_b elements";
}

// The fields of the parameters that say how rows of A lie in images.
inline void DescribeImages(Params& params, const ConvArguments& conv) {
  params.plane_pixels = conv.p * conv.q;
  params.image = {Divisor(conv.p * conv.q),
                  Divisor(conv.q),
                  conv.s,
                  conv.stride_h,
                  conv.stride_w,
                  conv.pad_top,
                  conv.pad_left,
                  conv.dilation_h,
                  conv.dilation_w};
  // Without groups all output channels are computed from all input channels, also those that a
  // cluster has beyond the last one.
  constexpr int kAllColumns = 0x7fffffff;
  params.groups = {Divisor(conv.groups > 1 ? conv.k / conv.groups : kAllColumns),
                   conv.c / conv.groups};
}

template <class K>
const char* DescribeActivations(Params& params, const ConvArguments& conv) {
  using Element = typename K::Element;
  DescribeImages(params, conv);
  if (K::kMean && IsMatrix(conv)) {
    params.a_is_matrix = true;
    return EncodeImages(params.a, kOperandType<Element>, sizeof(Element), conv.x, conv.x_pitch,
                        conv.c, conv.p * conv.q, conv.n, K::kBoxK, K::kTileM / kImageRows);
  }
  if (IsMatrix(conv)) return DescribeMatrix<K>(params, conv.x, Rows(conv), conv.c, conv.x_pitch);
  const std::initializer_list<Im2colAxis> axes = {WidthOf(conv), HeightOf(conv)};
  const Im2colTensor tensor{conv.n, conv.c, conv.x_pitch * int64_t(sizeof(Element)), axes};
  return EncodeIm2col(params.a, kOperandType<Element>, sizeof(Element), conv.x, tensor, K::kBoxK,
                      K::kMean ? kImageRows : K::kTileM / K::kClusterN);
}

// Checks what convolutions have in common. check_output() is the kernel's own check of y.
template <class K, class CheckOutput>
const char* CheckConvolution(const ConvArguments& conv, const CheckOutput& check_output) {
  const int64_t rows = ProductRows<K>(conv);
  const int depth = conv.c / conv.groups;
  if (const char* error = CheckExtents(rows, conv.k, int64_t(conv.r) * conv.s * conv.c))
    return error;
  if (const char* error = CheckInputs<K>(conv, depth)) return error;
  if (const char* error = check_output()) return error;
  if (const char* error = CheckIm2col(conv)) return error;
  if (const char* error =
          CheckOperands<typename K::Chain, typename K::Element>(conv.epilogue, K::Row::at(kAlignC)))
    return error;
  return CheckProblem<K>(rows, conv.k, depth, int64_t(conv.r) * conv.s);
}

// Launches a convolution's kernel; `pitch`: elements from one row of y to the next.
// describe(params) fills in what the kernel has beside others.
template <class K, class End, class Describe>
const char* LaunchConvolution(const ConvArguments& conv, int64_t pitch, const Launch& launch,
                              const Describe& describe) {
  if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.k == 0) return nullptr;
  const int taps = conv.r * conv.s, depth = conv.c / conv.groups;
  typename End::Params params{};
  if (const char* error = DescribeActivations<K>(params, conv)) return error;
  if (const char* error = DescribeOutput<K>(params, ProductRows<K>(conv), conv.k, depth, taps,
                                            conv.rows(), pitch, conv.epilogue, launch.config))
    return error;
  if (const char* error =
          DescribeWeights<K>(params, conv.filter, conv.k, taps, depth, int64_t(taps) * depth))
    return error;
  describe(params);
  if (const char* error = CheckLaunch<K>(params, launch.sm_count)) return error;
  return LaunchKernel<K, true, End>(params, launch);
}

// The functions of a family's instances (runtime/kernel.h) that do not depend on the family; K: the
// kernel's constants (sm90/shape.h).
template <class K, class End = TileEnd<K>>
struct ConvolutionFunctions {
  using Row = typename K::Row;
  using Element = typename K::Element;
  using Output = typename K::Output;
  static constexpr int kSharedMemory = K::kSharedMemory;

  static const char* prepare() {
    return ReserveSharedMemory(PersistentKernel<K, true, End>, K::kSharedMemory);
  }
  static size_t workspace_size(const void*, const int64_t*) { return 0; }
};

}  // namespace sm90
}  // namespace onnxbolt
