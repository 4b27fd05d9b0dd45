// The tiles that a convolution is cut into, and the layout of a tile's pixels in shared memory.
// onnxbolt/families/blocks/halo.py has the same formulas.
//
// A tile is `images` x `rows` x `columns` output pixels. Its input, border included, is one box of
// a tiled TMA copy: images x image_rows x row_pitch pixels, with zeros beyond the image. With
// stride 2 there is one such box for each phase (parity of row and column).
//
// The matrix product sees the tile as positions, in groups of eight that lie group_pitch pixels
// apart. Position p is pixel p / row_positions, p % row_positions of the box, and filter position
// (r, s) reads the pixel that is r * row_pitch + s behind it. If columns <= 8, each row of the tile
// is one group, of which only positions `columns` and up are wasted. If columns > 8, the positions
// are the box's pixels, and the last row_pitch - columns of each row are computed in vain.
//
// If the tile spans whole rows (or images), the zeros before one row (image) are also those behind
// the one before: a row has max(left, right) pixels of padding instead of left + right. The zeros
// behind the last row are `zero_pixels`, written once.
#pragma once
#include <algorithm>

#include "ops/conv/arguments.h"
#include "runtime/integers.h"
#include "runtime/kernel.h"

namespace onnxbolt {
namespace halo {

constexpr int kGroup = 8;     // pixels in a core matrix of wgmma
constexpr int kMaxBox = 256;  // extent of a TMA box

struct Geometry {
  int columns, rows, images;
  int row_pitch, image_rows;
  int group_pitch, row_positions;
  int zero_pixels;
  int column_blocks, row_blocks, image_blocks;

  __host__ __device__ int box_pixels() const { return row_pitch * image_rows * images; }
  int positions() const { return ((images - 1) * image_rows + rows - 1) * row_positions + columns; }
};

// The tile of at most columns x rows x images output pixels, for a convolution with equal strides.
inline Geometry MakeGeometry(const ConvArguments& conv, int columns, int rows, int images) {
  Geometry tile{};
  tile.columns = std::min(columns, conv.q);
  tile.rows = std::min(rows, conv.p);
  tile.images = std::min(images, conv.n);
  const bool whole_rows = conv.stride_w == 1 && tile.columns == conv.q;
  const bool whole_images = conv.stride_h == 1 && tile.rows == conv.p;
  tile.row_pitch = whole_rows ? conv.w + std::max(conv.pad_left, conv.pad_right)
                              : tile.columns + (conv.s - 1) / conv.stride_w;
  tile.image_rows = whole_images ? conv.h + std::max(conv.pad_top, conv.pad_bottom)
                                 : tile.rows + (conv.r - 1) / conv.stride_h;
  tile.group_pitch = tile.columns <= kGroup ? tile.row_pitch : kGroup;
  tile.row_positions = tile.columns <= kGroup ? kGroup : tile.row_pitch;
  if (whole_images) tile.zero_pixels += std::min(conv.pad_top, conv.pad_bottom) * tile.row_pitch;
  if (whole_rows) tile.zero_pixels += std::min(conv.pad_left, conv.pad_right);
  tile.column_blocks = CeilDivide(conv.q, tile.columns);
  tile.row_blocks = CeilDivide(conv.p, tile.rows);
  tile.image_blocks = CeilDivide(conv.n, tile.images);
  return tile;
}

inline bool Fits(const Geometry& tile, const ConvArguments& conv, int positions, int stage_pixels) {
  const int widest =
      std::max({tile.row_pitch * conv.stride_w, tile.image_rows * conv.stride_h, tile.images});
  return tile.positions() <= positions && tile.box_pixels() + tile.zero_pixels <= stage_pixels &&
         widest <= kMaxBox;
}

// The tile that was chosen (0: as much as fits), or a smaller one if an image of another size
// leaves no room for it.
inline Geometry FitGeometry(const ConvArguments& conv, int columns, int rows, int images,
                            int positions, int stage_pixels) {
  if (rows == 0) rows = conv.p;
  Geometry tile = MakeGeometry(conv, columns > 0 ? columns : conv.q, rows,
                               std::min(images > 0 ? images : conv.n, positions));
  while (!Fits(tile, conv, positions, stage_pixels)) {
    if (tile.images > 1)
      tile = MakeGeometry(conv, tile.columns, tile.rows, tile.images - 1);
    else if (tile.rows > 1)
      tile = MakeGeometry(conv, tile.columns, tile.rows - 1, 1);
    else if (tile.columns > 1)
      tile = MakeGeometry(conv, CeilDivide(tile.columns, 2), rows, 1);
    else
      break;
  }
  return tile;
}

}  // namespace halo
}  // namespace onnxbolt
