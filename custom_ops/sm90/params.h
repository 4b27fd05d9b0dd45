// Parameters of a launch, the same for all blocks, of kernels that compute one product.
#pragma once
#include <cuda.h>

#include "runtime/kernel.h"
#include "sm90/schedule.h"

namespace onnxbolt {
namespace sm90 {

// The relation of output pixels to the input image; unused if the rows of A are a matrix.
struct ImageGeometry {
  Divisor pixels, row;  // pixels of an output image, and of one of its rows
  int filter_w;
  int stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
};

struct Params {
  CUtensorMap a, b, d, residual;
  void* y;  // y if threads store it: as NCHW (sm90/nchw.h), `d` being its other layout then, or
            // means (sm90/mean.h)
  int64_t y_pitch;  // means: elements from one image to the next
  int plane_pixels;
  TileSchedule schedule;
  int rows, columns;           // extents of the output
  int blocks, blocks_per_tap;  // k-blocks in all, and of one filter position
  int split;                   // blocks of a cluster that share a tile's k-blocks
  bool a_is_matrix;
  ImageGeometry image;
  ChannelGroups groups;  // not used by a GEMM
  EpilogueArguments operands;
  int plane_columns;  // columns of NCHW, which may lack the last channels
};

// The output pixels of an axis by the taps that meet the image there: each of the first ones, up to
// `first`, and of the last ones, from `last` on, is a class of its own, the others are one class.
struct BorderAxis {
  int first, last;

  __host__ __device__ int class_of(int pixel) const {
    return pixel < first ? pixel : pixel < last ? first : first + 1 + pixel - last;
  }
  __host__ __device__ int classes(int pixels) const {
    return pixels > 0 ? class_of(pixels - 1) + 1 : 1;
  }
};

// Beside those of other products: what is added to a sum of codes for the zero point of x, by the
// class of the pixel and the column; and where values are written.
struct CodeParams : Params {
  const int32_t* offsets;  // [classes, columns]
  void* values;            // [rows, columns], if the chain stores its result in front of its end
  BorderAxis border_h, border_w;
  int classes_w;
};

// The k-blocks that this block multiplies: all, or the share of block `rank` if a cluster's blocks
// share them.
struct BlockRange {
  int first, end;

  __device__ BlockRange(const Params& params, int rank)
      : first(params.split > 1 ? params.blocks * rank / params.split : 0),
        end(params.split > 1 ? params.blocks * (rank + 1) / params.split : params.blocks) {}

  __device__ int count() const { return end - first; }

  // Every tile has the same k-blocks.
  static constexpr bool kSkipsTaps = false;
  __device__ void enter(const Params&, int) {}
};

}  // namespace sm90
}  // namespace onnxbolt
