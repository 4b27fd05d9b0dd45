// Checks that every kernel of a convolution makes before a launch.
#pragma once
#include "ops/conv/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {

// nullptr if a convolution wants its output in the layout that the kernel writes: NCHW where
// `nchw`, else NHWC, or `both`; `apart`: pixel by pixel, those of a transposed convolution. Nor are
// volumes for kernels of images, or images for those of `volumes`.
inline const char* CheckLayout(const ConvArguments& conv, bool nchw, bool both = false,
                               bool apart = false, bool volumes = false) {
  if (conv.depth.exists() != volumes)
    return volumes ? "x is an image, and the kernel reads volumes"
                   : "x is a volume, and the kernel reads images";
  if (conv.pixels.apart() != apart)
    return apart ? "y is to be stored in rows, and the kernel stores pixels of phases"
                 : "y is to be stored by phases of pixels, and the kernel stores rows";
  if (both && !conv.stored) return "y is to be written in one form, and the kernel writes both";
  if (!both && conv.stored) return "y is to be written in both forms, and the kernel writes one";
  if (conv.padding < 0 || (conv.padding > 0 && conv.padding >= conv.k))
    return "no channel of y is left without the padding";
  const bool writes_nchw = nchw || both;
  if (writes_nchw == (conv.y_nchw != 0)) return nullptr;
  return writes_nchw ? "y is to have its channels last, and the kernel puts them first"
                     : "y is to have its channels first, and the kernel puts them last";
}

}  // namespace onnxbolt
