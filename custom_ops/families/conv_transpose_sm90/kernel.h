// Transposed convolution for sm_90a in NHWC: an implicit GEMM whose columns are the channels of all
// phases of y's pixels, which are stored at their pixels (sm90/phases.h). Slices of volumes are
// images, each of which makes several slices of y; kernels of instruction_n 1 store these.
//
// Constraints: rows of x and filter are multiples of 16 bytes, and so are a group's channels of y;
// a tile's columns belong to one group; padding and the filter's reach fit TMA's im2col window.
#pragma once
#include "sm90/convolution.h"
#include "sm90/phases.h"

namespace onnxbolt {

// See ConvArguments and PhasedPixels. float is multiplied as TF32, rounded by TMA on its way into
// shared memory.
template <class Config, class ElementType, class OutputType, class ChainType,
          class PhasedShape = sm90::PhasedShape<Config, ElementType, OutputType, ChainType>>
struct ConvTransposeSm90
    : sm90::ConvolutionFunctions<PhasedShape, sm90::PhasedTileEnd<PhasedShape>> {
  using Shape = PhasedShape;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = CheckLayout(conv, false, false, true)) return error;
    if (const char* error = check_groups(conv)) return error;
    return sm90::CheckConvolution<Shape>(conv, [&] { return check_output(conv); });
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    // the map of y is not used: its rows are described as if they were dense
    return sm90::LaunchConvolution<Shape, sm90::PhasedTileEnd<Shape>>(
        conv, conv.k, launch, [&](auto& params) {
          params.places = typename Shape::Places(conv);
          params.skips_taps = params.places.skips_taps(), params.taps_h = conv.r;
          params.y = conv.y, params.y_pitch = conv.y_pitch;
        });
  }

 private:
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");

  static const char* check_groups(const ConvArguments& conv) {
    if ((conv.pixels.d > 1) != Shape::kSlices)
      return Shape::kSlices ? "the kernel stores several slices of y for one of x"
                            : "the kernel stores one image of y for one of x";
    const int phases = conv.pixels.count();
    if (conv.groups < 1 || phases < 1 || conv.c % conv.groups != 0 ||
        conv.k % (conv.groups * phases) != 0)
      return "c and k have to be multiples of groups, and k also of phases";
    if (conv.groups > 1 && conv.k / conv.groups % (Shape::kTileN * Shape::kClusterN) != 0)
      return "a tile's columns have to belong to one group";
    if (conv.pixels.zeros_h < 0 || conv.pixels.zeros_h >= conv.pixels.h ||
        conv.pixels.zeros_w < 0 || conv.pixels.zeros_w >= conv.pixels.w)
      return "fewer phases than there are lack a tap";
    return nullptr;
  }

  static const char* check_output(const ConvArguments& conv) {
    constexpr int kC = Row::at(kAlignC);
    const int channels = conv.k / conv.groups / conv.pixels.count();
    if (channels % kC != 0 || channels * sizeof(Output) % 16 != 0 || conv.y_pitch % kC != 0 ||
        conv.y_pitch * sizeof(Output) % 16 != 0 || !IsAligned(conv.y, 16))
      return "y, its pitch or a group's channels are not aligned to align_c elements";
    if (ChainType::kTensors > 0 && channels % Shape::Finish::kUnitColumns != 0)
      return "all columns of a unit have to be of one phase, since the epilogue reads tensors";
    return nullptr;
  }
};

}  // namespace onnxbolt
