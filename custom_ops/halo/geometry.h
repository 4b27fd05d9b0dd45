// How a convolution is cut into spatial tiles, and where a tile's pixels lie in shared memory. onnxbolt/kernels/halo.py has the
// same formulas.
//
// A tile is `images` x `rows` x `columns` output pixels. Its input, border included, is one box of a tiled TMA: images x image_rows x
// row_pitch pixels, zeros where the image ends. With stride 2 there is one such box for each phase (parity of row and column).
//
// The matrix product sees the tile as positions, in groups of eight that lie group_pitch pixels apart. Position p is the pixel
// p / row_positions, p % row_positions of the box, and the filter's position (r, s) meets the pixel r * row_pitch + s behind it.
//   columns <= 8: each row of the tile is one group, so that no position is wasted but columns 8 and up.
//   columns > 8: the box's pixels are the positions, and the last row_pitch - columns of each row are computed in vain.
// Where the tile spans whole rows (or images), the zeros before one row (image) also serve as those behind the one before: a row
// is max(left, right) pixels of padding wide instead of left + right. The zeros behind the last row are `zero_pixels`, written once.
#pragma once
#include <algorithm>

#include "kernel.h"

namespace onnxbolt {
namespace halo {

constexpr int kGroup = 8;        // pixels that a shared-memory matrix has in a core matrix
constexpr int kMaxBox = 256;     // extent of a TMA box

struct Geometry {
  int columns, rows, images;
  int row_pitch, image_rows;
  int group_pitch, row_positions;
  int zero_pixels;
  int column_blocks, row_blocks, image_blocks;

  int box_pixels() const { return row_pitch * image_rows * images; }
  int positions() const { return ((images - 1) * image_rows + rows - 1) * row_positions + columns; }
};

inline int CeilDiv(int a, int b) { return (a + b - 1) / b; }

// The tile of at most columns x rows x images of a convolution with equal strides.
inline Geometry MakeGeometry(const ConvArguments& conv, int columns, int rows, int images) {
  Geometry tile{};
  tile.columns = std::min(columns, conv.q);
  tile.rows = std::min(rows, conv.p);
  tile.images = std::min(images, conv.n);
  const bool whole_rows = conv.stride_w == 1 && tile.columns == conv.q;
  const bool whole_images = conv.stride_h == 1 && tile.rows == conv.p;
  tile.row_pitch = whole_rows ? conv.w + std::max(conv.pad_left, conv.pad_right) : tile.columns + (conv.s - 1) / conv.stride_w;
  tile.image_rows = whole_images ? conv.h + std::max(conv.pad_top, conv.pad_bottom) : tile.rows + (conv.r - 1) / conv.stride_h;
  tile.group_pitch = tile.columns <= kGroup ? tile.row_pitch : kGroup;
  tile.row_positions = tile.columns <= kGroup ? kGroup : tile.row_pitch;
  if (whole_images) tile.zero_pixels += std::min(conv.pad_top, conv.pad_bottom) * tile.row_pitch;
  if (whole_rows) tile.zero_pixels += std::min(conv.pad_left, conv.pad_right);
  tile.column_blocks = CeilDiv(conv.q, tile.columns);
  tile.row_blocks = CeilDiv(conv.p, tile.rows);
  tile.image_blocks = CeilDiv(conv.n, tile.images);
  return tile;
}

}  // namespace halo
}  // namespace onnxbolt
