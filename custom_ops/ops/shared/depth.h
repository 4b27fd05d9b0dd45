// The axis that volumes have beside height and width.
#pragma once

namespace onnxbolt {

// The third axis of a convolution or pooling of volumes, in front of height and width: extents of
// x, of the filter or window, and of y, pads, stride, dilation. An image has none.
struct DepthAxis {
  int x = 0, filter = 1, y = 0, pad_front = 0, pad_back = 0, stride = 1, dilation = 1;

  constexpr bool exists() const { return y > 0; }
};

}  // namespace onnxbolt
