// Convolution of volumes for sm_90a in NDHWC: an implicit GEMM whose rows are output pixels and
// whose columns are output channels (sm90/volume.h).
//
// Constraints: rows of x, filter and y are multiples of 16 bytes; a tile's output channels belong
// to one group; padding and the filter's reach fit TMA's im2col window of 16 pixels.
#pragma once
#include "ops/conv/check.h"
#include "sm90/volume.h"

namespace onnxbolt {

// See ConvArguments. float is multiplied as TF32, rounded by TMA on its way into shared memory.
template <class Config, class ElementType, class OutputType, class ChainType>
struct Conv3dSm90 {
  using Shape = sm90::VolumeShape<Config, ElementType, OutputType, ChainType>;
  using End = sm90::VolumeTileEnd<Shape>;
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = Shape::kSharedMemory;

  static const char* prepare() {
    return ReserveSharedMemory(sm90::PersistentKernel<Shape, true, End>, Shape::kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    constexpr bool kNchw = false, kBoth = false, kApart = false, kVolumes = true;
    if (const char* error = CheckLayout(conv, kNchw, kBoth, kApart, kVolumes)) return error;
    if (const char* error = sm90::CheckGroups<Shape>(conv)) return error;
    const int64_t rows = sm90::VolumeRows(conv), taps = sm90::VolumeTaps(conv);
    if (const char* error = CheckExtents(rows, conv.k, taps * conv.c)) return error;
    if (const char* error = sm90::CheckInputs<Shape>(conv, depth(conv))) return error;
    if (const char* error = sm90::CheckRows<Shape>(conv)) return error;
    if (const char* error = sm90::CheckVolumes(conv)) return error;
    if (const char* error = CheckOperands<ChainType, Element>(conv.epilogue, Row::at(kAlignC)))
      return error;
    return sm90::CheckProblem<Shape>(rows, conv.k, depth(conv), taps);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    const int64_t rows = sm90::VolumeRows(conv);
    if (rows == 0 || conv.k == 0) return nullptr;
    const int taps = static_cast<int>(sm90::VolumeTaps(conv));
    sm90::VolumeParams params{};
    if (const char* error = sm90::DescribeVolumes<Shape>(params, conv)) return error;
    if (const char* error =
            sm90::DescribeOutput<Shape>(params, rows, conv.k, depth(conv), taps, conv.y,
                                        conv.y_pitch, conv.epilogue, launch.config))
      return error;
    if (const char* error = sm90::DescribeWeights<Shape>(params, conv.filter, conv.k, taps,
                                                         depth(conv), int64_t(taps) * depth(conv)))
      return error;
    if (const char* error = sm90::CheckLaunch<Shape>(params, launch.sm_count)) return error;
    return sm90::LaunchKernel<Shape, true, End>(params, launch);
  }

 private:
  static_assert(Row::at(kAlignA) * sizeof(Element) == 16 &&
                    Row::at(kAlignB) * sizeof(Element) == 16 &&
                    Row::at(kAlignC) * sizeof(Element) == 16,
                "TMA moves rows of 16 bytes");

  static int depth(const ConvArguments& conv) { return conv.c / conv.groups; }
};

}  // namespace onnxbolt
