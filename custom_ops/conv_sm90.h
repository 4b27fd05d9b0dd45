// Forward convolution of our own for sm_90a as an implicit GEMM (NHWC): persistent, warp-specialized, TMA and wgmma
// (sm90/persistent.h). TMA gathers the pixels of each filter position (im2col); where a convolution is a GEMM, it copies tiles.
#pragma once
#include "sm90/persistent.h"

namespace onnxbolt {

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c / groups]). float is multiplied as TF32, rounded by TMA on its way into shared
// memory.
template <class Config, class ElementType, class OutputType, class ChainType>
struct ConvSm90 : sm90::KernelShape<Config, ElementType, OutputType, ChainType> {
  using Shape = sm90::KernelShape<Config, ElementType, OutputType, ChainType>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* prepare() { return ReserveSharedMemory(sm90::PersistentKernel<Shape, true>, Shape::kSharedMemory); }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = check_groups(conv)) return error;
    if (const char* error = CheckExtents(rows(conv), conv.k, int64_t(conv.r) * conv.s * conv.c)) return error;
    if (const char* error = check_alignment(conv)) return error;
    if (const char* error = is_matrix(conv) ? nullptr : check_im2col(conv)) return error;
    if (const char* error = CheckOperands<ChainType, Element>(conv.epilogue, Row::at(kAlignC))) return error;
    return sm90::CheckProblem<Shape>(rows(conv), conv.k, depth(conv), int64_t(conv.r) * conv.s);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.k == 0) return nullptr;
    const int taps = conv.r * conv.s;
    sm90::Params params{};
    if (const char* error =
            sm90::DescribeOutput<Shape>(params, rows(conv), conv.k, depth(conv), taps, conv.y, conv.y_pitch, conv.epilogue, launch.config))
      return error;
    params.groups = {sm90::Divisor(conv.k / conv.groups), depth(conv)};
    if (const char* error = describe_activations(params, conv)) return error;
    if (const char* error = describe_weights(params, conv)) return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, true>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 && Row::at(kAlignB) * sizeof(Element) == 16 &&
                Row::at(kAlignC) * sizeof(Element) == 16, "TMA moves rows of 16 bytes");

  static int64_t rows(const ConvArguments& conv) { return int64_t(conv.n) * conv.p * conv.q; }

  static int depth(const ConvArguments& conv) { return conv.c / conv.groups; }

  // Where a k-block reaches beyond its group it reads channels of the next one, and meets weights of zero.
  static const char* check_groups(const ConvArguments& conv) {
    if (conv.groups < 1 || conv.c % conv.groups != 0 || conv.k % conv.groups != 0) return "c and k have to be multiples of groups";
    if (conv.groups > 1 && conv.k / conv.groups % (Shape::kTileN * Shape::kClusterN) != 0)
      return "a tile's output channels have to belong to one group";
    return nullptr;
  }

  static const char* describe_weights(sm90::Params& params, const ConvArguments& conv) {
    const int taps = conv.r * conv.s;
    return sm90::DescribeWeights<Shape>(params, conv.filter, conv.k, taps, depth(conv), int64_t(taps) * depth(conv));
  }

  static bool is_matrix(const ConvArguments& conv) {
    return conv.r == 1 && conv.s == 1 && conv.stride_h == 1 && conv.stride_w == 1 && conv.p == conv.h && conv.q == conv.w &&
           conv.pad_top == 0 && conv.pad_left == 0;
  }

  static const char* check_alignment(const ConvArguments& conv) {
    constexpr int kA = Row::at(kAlignA), kC = Row::at(kAlignC);
    if (depth(conv) % kA != 0 || conv.x_pitch % kA != 0 || !IsAligned(conv.x, kA * sizeof(Element)))
      return "x, its pitch or a group's c is not aligned to align_a elements";
    if (!IsAligned(conv.filter, kA * sizeof(Element))) return "the filter is not aligned to align_b elements";
    if (conv.k % kC != 0 || conv.y_pitch % kC != 0 || conv.y_pitch * sizeof(Output) % 16 != 0 || !IsAligned(conv.y, 16))
      return "y, its pitch or k is not aligned to align_c elements";
    return nullptr;
  }

  static sm90::Corners corners(const ConvArguments& conv) {
    return {-conv.pad_left, -conv.pad_top, conv.pad_right - conv.dilation_w * (conv.s - 1),
            conv.pad_bottom - conv.dilation_h * (conv.r - 1)};
  }

  // The fields of an im2col tensor map and of its copies (CUDA driver API: cuTensorMapEncodeIm2col, rank 4).
  static const char* check_im2col(const ConvArguments& conv) {
    const sm90::Corners at = corners(conv);
    for (int corner : {at.lower_w, at.lower_h, at.upper_w, at.upper_h}) {
      if (corner < -128 || corner > 127) return "padding, or the filter's reach, exceeds the 128 pixels of TMA's im2col";
    }
    if (conv.dilation_h * (conv.r - 1) > 255 || conv.dilation_w * (conv.s - 1) > 255) return "the filter exceeds TMA's 256 pixels";
    return conv.stride_h <= 8 && conv.stride_w <= 8 ? nullptr : "a stride exceeds TMA's 8";
  }

  static const char* describe_activations(sm90::Params& params, const ConvArguments& conv) {
    params.image = {sm90::Divisor(conv.p * conv.q), sm90::Divisor(conv.q), conv.s, conv.stride_h, conv.stride_w, conv.pad_top, conv.pad_left,
                    conv.dilation_h, conv.dilation_w};
    if (is_matrix(conv)) return sm90::DescribeMatrix<Shape>(params, conv.x, rows(conv), conv.c, conv.x_pitch);
    const sm90::Im2colTensor tensor{conv.n, conv.h, conv.w, conv.c, conv.x_pitch * int64_t(sizeof(Element)), conv.stride_h, conv.stride_w,
                                    corners(conv)};
    return sm90::EncodeIm2col(params.a, sm90::kOperandType<Element>, sizeof(Element), conv.x, tensor, Shape::kBoxK,
                              Shape::kTileM / Shape::kClusterN);
  }
};

}  // namespace onnxbolt
