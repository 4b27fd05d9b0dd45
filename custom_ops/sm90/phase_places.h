// Places in y of the results of a convolution whose columns are the channels of all phases.
//
// A row is an output of the convolution, and a column a channel of a phase, group by group, phase
// by phase: of volumes along the depth, then along the height and the width. Divisions are
// multiplications (sm90/divisor.h). The last phases along an axis may meet zeros alone at the
// filter's first tap, where its extent is no multiple of the stride.
#pragma once
#include "ops/conv/arguments.h"
#include "sm90/divisor.h"

namespace onnxbolt {
namespace sm90 {

struct PhasedPlaces {
  Divisor pixels, row;                // outputs of an image of the convolution, and of one row
  Divisor group, channels, phases_w;  // columns of a group, of a phase; phases along the width
  int columns_of_group, channels_of_group, phases_h, phases_of_row, top, left, height, width;
  int whole_h, whole_w;  // the phases along each axis that meet no zeros at the first tap

  PhasedPlaces() = default;
  explicit PhasedPlaces(const ConvArguments& conv)
      : pixels(conv.p * conv.q),
        row(conv.q),
        group(conv.k / conv.groups),
        phases_w(conv.pixels.w),
        phases_h(conv.pixels.h),
        phases_of_row(conv.pixels.w),
        top(conv.pixels.top),
        left(conv.pixels.left),
        height(conv.pixels.height),
        width(conv.pixels.width),
        whole_h(conv.r > 1 ? phases_h - conv.pixels.zeros_h : phases_h),
        whole_w(conv.s > 1 ? phases_of_row - conv.pixels.zeros_w : phases_of_row) {
    columns_of_group = conv.k / conv.groups;
    channels_of_group = columns_of_group / conv.pixels.count();
    channels = Divisor(channels_of_group);
  }

  bool skips_taps() const { return whole_h < phases_h || whole_w < phases_of_row; }

  // The phase along the depth, which images do not have.
  __device__ static int split_depth(int&) { return 0; }
  // The image of y that an image of x makes in a phase along the depth.
  __device__ static int64_t image_of(int image, int) { return image; }
};

// Each image of x is a slice of a volume, and makes several slices of y.
struct SlicedPlaces : PhasedPlaces {
  Divisor height_phases;
  int slices;

  SlicedPlaces() = default;
  explicit SlicedPlaces(const ConvArguments& conv)
      : PhasedPlaces(conv), height_phases(conv.pixels.h), slices(conv.pixels.d) {}

  // The phase along the depth; what remains in `y` is that along the height.
  __device__ int split_depth(int& y) const { return height_phases.split(y); }
  __device__ int64_t image_of(int image, int z) const { return int64_t(image) * slices + z; }
};

// A pixel of the first phase: its image, row and column, which may be in front of y.
struct FirstPixel {
  int image, y, x;
};

// The phase of a column, and its channel in y.
struct PhaseOfColumn {
  int z, y, x, channel;

  template <class Places>
  __device__ PhaseOfColumn(const Places& places, int column) {
    const int of_group = places.group.split(column), phase = places.channels.split(column);
    x = phase, y = places.phases_w.split(x), z = places.split_depth(y);
    channel = of_group * places.channels_of_group + column;
  }
};

// The pixel of a row of the product, as that of the first phase.
__device__ inline FirstPixel PixelOfRow(const PhasedPlaces& places, int row) {
  FirstPixel at;
  at.image = places.pixels.split(row);
  at.y = places.row.split(row) * places.phases_h - places.top;
  at.x = row * places.phases_of_row - places.left;
  return at;
}

// The place of a pixel among those of y; negative if y has no such pixel.
template <class Places>
__device__ int64_t PlaceOf(const Places& places, const FirstPixel& first,
                           const PhaseOfColumn& phase) {
  const int y = first.y + phase.y, x = first.x + phase.x;
  const bool inside = y >= 0 && y < places.height && x >= 0 && x < places.width;
  const int64_t image = places.image_of(first.image, phase.z);
  return inside ? (image * places.height + y) * places.width + x : -1;
}

// The first filter position that some of the columns from `column` to `end` meet: 0 or 1 along each
// axis. The columns are of one group.
struct FirstTap {
  int r = 0, s = 0;

  FirstTap() = default;
  template <class Places>
  __device__ FirstTap(const Places& places, int column, int end) : r(1), s(1) {
    const int group = places.group.split(column) * places.columns_of_group;
    end = end - group < places.columns_of_group ? end - group : places.columns_of_group;
    const int last = places.channels.divide(end - 1);
    for (int phase = places.channels.divide(column); phase <= last; ++phase) {
      int x = phase;
      int y = places.phases_w.split(x);
      places.split_depth(y);
      if (y < places.whole_h) r = 0;
      if (x < places.whole_w) s = 0;
    }
  }
};

}  // namespace sm90
}  // namespace onnxbolt
