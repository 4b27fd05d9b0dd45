// Convolutions of volumes, NDHWC: as those of images (sm90/convolution.h), with rows of A from
// TMA's im2col of three spatial axes.
//
// Constraints: TMA encodes corners and offsets of three axes in 5 bits, those of two in 8.
#pragma once
#include "sm90/convolution.h"

namespace onnxbolt {
namespace sm90 {

struct VolumeParams : Params {
  Divisor pixels, filter_h;  // pixels of an output volume; rows of a slice of the filter
  int stride_d, pad_front, dilation_d;
};

template <class Config, class ElementType, class OutputType, class ChainType>
struct VolumeShape : KernelShape<Config, ElementType, OutputType, ChainType> {
  static_assert(!VolumeShape::kNchw, "rows are stored as they lie");
};

// The end of a tile for Consumer, in a kernel with these parameters.
template <class K>
class VolumeTileEnd : public TileEnd<K> {
 public:
  using Params = VolumeParams;
  using TileEnd<K>::TileEnd;
};

// In place of the rows of a filter, BlockCursor counts those of all its slices.
template <class Config, class ElementType, class OutputType, class ChainType>
class LoaderOfA<VolumeShape<Config, ElementType, OutputType, ChainType>, true> {
 public:
  using K = VolumeShape<Config, ElementType, OutputType, ChainType>;
  static constexpr int kRows = K::kTileM / K::kClusterN, kPartBytes = kRows * K::kBoxBytes;

  __device__ LoaderOfA(const VolumeParams& params, int rank) : params_(params), sharing_(rank) {}

  __device__ void begin_tile(int row, int column) {
    const ImageGeometry& image = params_.image;
    int pixel = row + sharing_.part * kRows;
    from_.c = params_.groups.first_channel(column);
    from_.n = params_.pixels.split(pixel);
    from_.d = image.pixels.split(pixel) * params_.stride_d - params_.pad_front;
    from_.h = image.row.split(pixel) * image.stride_h - image.pad_top;
    from_.w = pixel * image.stride_w - image.pad_left;
  }

  __device__ void load(Barrier& full, char* tile, const BlockCursor<K>& at) const {
    const ImageGeometry& image = params_.image;
    int row = at.r;
    const int slice = params_.filter_h.split(row);
    Im2colOfVolume from = from_;
    from.offset_w = static_cast<uint16_t>(at.s * image.dilation_w);
    from.offset_h = static_cast<uint16_t>(row * image.dilation_h);
    from.offset_d = static_cast<uint16_t>(slice * params_.dilation_d);
#pragma unroll
    for (int box = 0; box < K::kBoxes; ++box) {
      char* to = tile + box * K::kTileM * K::kBoxBytes + sharing_.part * kPartBytes;
      from.c = from_.c + at.channel + box * K::kBoxK;
      if constexpr (K::kClusterN > 1)
        LoadVolume(params_.a, full, to, from, Cache::kNormal, sharing_.mask);
      else
        LoadVolume(params_.a, full, to, from, Cache::kNormal);
    }
  }

 private:
  const VolumeParams& params_;
  const SharingOfA<K> sharing_;
  Im2colOfVolume from_{};
};

inline int64_t VolumeRows(const ConvArguments& conv) { return Rows(conv) * conv.depth.y; }

inline int64_t VolumeTaps(const ConvArguments& conv) {
  return int64_t(conv.depth.filter) * conv.r * conv.s;
}

inline Im2colAxis DepthOf(const DepthAxis& depth) {
  return {depth.x, depth.stride, -depth.pad_front,
          depth.pad_back - depth.dilation * (depth.filter - 1)};
}

// The fields of an im2col tensor map of rank 5 and of its copies.
inline const char* CheckVolumes(const ConvArguments& conv) {
  const DepthAxis& depth = conv.depth;
  for (const Im2colAxis& axis : {WidthOf(conv), HeightOf(conv), DepthOf(depth)}) {
    for (int corner : {axis.lower, axis.upper}) {
      if (corner < -16 || corner > 15)
        return "padding, or the filter's reach, exceeds the 16 pixels of TMA's im2col of volumes";
    }
    if (axis.stride > 8) return "a stride exceeds TMA's 8";
  }
  for (int reach : {depth.dilation * (depth.filter - 1), conv.dilation_h * (conv.r - 1),
                    conv.dilation_w * (conv.s - 1)}) {
    if (reach > 31) return "the filter exceeds TMA's 32 pixels";
  }
  return nullptr;
}

template <class K>
const char* DescribeVolumes(VolumeParams& params, const ConvArguments& conv) {
  using Element = typename K::Element;
  const DepthAxis& depth = conv.depth;
  DescribeImages(params, conv);
  params.pixels = Divisor(depth.y * conv.p * conv.q);
  params.filter_h = Divisor(conv.r);
  params.stride_d = depth.stride, params.pad_front = depth.pad_front;
  params.dilation_d = depth.dilation;
  const std::initializer_list<Im2colAxis> axes = {WidthOf(conv), HeightOf(conv), DepthOf(depth)};
  const Im2colTensor tensor{conv.n, conv.c, conv.x_pitch * int64_t(sizeof(Element)), axes};
  return EncodeIm2col(params.a, kOperandType<Element>, sizeof(Element), conv.x, tensor, K::kBoxK,
                      K::kTileM / K::kClusterN);
}

}  // namespace sm90
}  // namespace onnxbolt
