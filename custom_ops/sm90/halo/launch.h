// The host's part of a halo convolution: checks, and the parameters of a launch.
#pragma once
#include <algorithm>
#include <iterator>

#include "ops/conv/arguments.h"
#include "sm90/halo/block.h"
#include "sm90/tensor_map.h"

namespace onnxbolt {
namespace halo {

constexpr int kAlign = 8;                        // elements of an access: 16 bytes
constexpr int64_t kMaxPitch = int64_t(1) << 28;  // elements: a pitch in bytes is held in 32 bits

// Checks an NHWC output, which is written in accesses of 16 bytes. `epilogue`: the last layer's.
inline const char* CheckRows(const ConvArguments& conv, const EpilogueArguments& epilogue) {
  if (conv.k / conv.groups % kAlign != 0 || conv.y_pitch % kAlign != 0 || !IsAligned(conv.y, 16))
    return "y, its pitch or a group's k is not aligned to 16 bytes";
  const int64_t pitch = std::max(conv.y_pitch, *std::max_element(std::begin(epilogue.tensor_pitch),
                                                                 std::end(epilogue.tensor_pitch)));
  return pitch <= kMaxPitch ? nullptr : "pixels of y or of a tensor lie too far apart";
}

// Checks what no launch can serve. Returns nullptr if the convolution can be read and multiplied,
// else what is wrong.
inline const char* CheckConvolution(const ConvArguments& conv) {
  if (const char* error = CheckExtents(int64_t(conv.n) * conv.p * conv.q, conv.k,
                                       int64_t(conv.r) * conv.s * conv.c))
    return error;
  if (conv.groups < 1 || conv.c % conv.groups != 0 || conv.k % conv.groups != 0)
    return "c and k have to be multiples of groups";
  if (conv.dilation_h != 1 || conv.dilation_w != 1) return "halo convolutions need dilation 1";
  if (std::min({conv.pad_top, conv.pad_left, conv.pad_bottom, conv.pad_right}) < 0)
    return "halo convolutions take no pixels off the image";
  if (conv.stride_h != conv.stride_w || conv.stride_h < 1 || conv.stride_h > 2)
    return "halo convolutions need equal strides of 1 or 2";
  if (conv.c / conv.groups % kAlign != 0 || conv.x_pitch % kAlign != 0 || !IsAligned(conv.x, 16) ||
      !IsAligned(conv.filter, 16))
    return "x, its pitch, the filter or a group's c is not aligned to 16 bytes";
  return nullptr;
}

template <class Plan>
void Describe(Params& params, const ConvArguments& conv, const Launch& launch) {
  params.tile = FitGeometry(conv, int(launch.config[kWarpM]), int(launch.config[kWarpN]),
                            int(launch.config[kWarpK]), Plan::kPositions, Plan::kStagePixels);
  params.n = conv.n, params.p = conv.p, params.q = conv.q, params.k = conv.k, params.c = conv.c,
  params.r = conv.r, params.s = conv.s;
  params.pad_top = conv.pad_top, params.pad_left = conv.pad_left, params.stride = conv.stride_h;
  const int columns = conv.k / conv.groups;
  params.groups = {conv.groups, columns, CeilDivide(columns, Plan::kTileChannels),
                   conv.c / conv.groups};
  params.channel_blocks = conv.groups * params.groups.blocks;
  params.order = {sm90::Divisor(params.channel_blocks), sm90::Divisor(params.groups.blocks),
                  sm90::Divisor(params.tile.column_blocks), sm90::Divisor(params.tile.row_blocks)};
  params.k_blocks = CeilDivide(params.groups.depth, Plan::kBlockK);
  const int spatial_tiles =
      params.tile.column_blocks * params.tile.row_blocks * params.tile.image_blocks;
  params.tiles = CeilDivide(spatial_tiles, Plan::kCluster) * params.channel_blocks;
  params.y = conv.y, params.y_pitch = conv.y_pitch, params.epilogue = conv.epilogue;
}

// Checks that the launch's tile fits the kernel.
template <class Plan>
const char* CheckTile(const Params& params, const ConvArguments& conv, int sm_count) {
  const Geometry& tile = params.tile;
  if (!Fits(tile, conv, Plan::kPositions, Plan::kStagePixels))
    return "no tile of the kernel holds the filter's border";
  const int last = (Plan::kPositions / kGroup - 1) * tile.group_pitch + kGroup +
                   (conv.r - 1) / conv.stride_h * tile.row_pitch + (conv.s - 1) / conv.stride_w;
  if ((Plan::kInputStages - 1) * Plan::kInputBytes + last * Plan::kRowBytes > Plan::kSharedMemory)
    return "positions beyond the tile would be read outside of shared memory";
  if (Plan::kKeepsFilter && params.k_blocks * conv.r * conv.s > Plan::kFilterStages)
    return "the filters do not fit beside the tiles";
  if (Plan::kKeepsFilter && params.channel_blocks > sm_count)
    return "more blocks of output channels than SMs to keep their filters";
  return nullptr;
}

template <class Plan>
const char* EncodeMaps(Params& params, const ConvArguments& conv) {
  const Geometry& tile = params.tile;
  using Element = typename Plan::Element;
  constexpr auto kType = sm90::kOperandType<Element>;
  constexpr int kBytes = sizeof(Element), kRow = Plan::kRowBytes / kBytes;
  const int64_t pixel = conv.x_pitch * kBytes, row = pixel * conv.w, depth = conv.c / conv.groups,
                filter_row = depth * kBytes;
  const char* error =
      sm90::EncodeTiled(params.x, kType, kBytes, conv.x,
                        {{conv.c, 0, kRow},
                         {conv.w, pixel, tile.row_pitch, conv.stride_w},
                         {conv.h, row, tile.image_rows, conv.stride_h},
                         {conv.n, row * conv.h, tile.images}},
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B);  // 128 B: fetching the next k-block as
                                                              // well would delay the first tile
  if (error) return error;
  return sm90::EncodeTiled(params.filter, kType, kBytes, conv.filter,
                           {{depth, 0, kRow},
                            {int64_t(conv.r) * conv.s, filter_row, 1},
                            {conv.k, filter_row * conv.r * conv.s, Plan::kFilterShare}});
}

// The number of blocks. Those that keep their filters have the same output channels in all their
// tiles.
template <class Plan>
int GridSize(const Params& params, int sm_count) {
  const int clusters = std::min(params.tiles, sm_count / Plan::kCluster);
  return Plan::kKeepsFilter ? clusters / params.channel_blocks * params.channel_blocks
                            : clusters * Plan::kCluster;
}

}  // namespace halo
}  // namespace onnxbolt
