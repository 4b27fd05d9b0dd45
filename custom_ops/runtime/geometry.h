// Shapes of the fused nodes' outputs, for shape inference (dimensions may be kUnknown) and for runs
// alike.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/manifest.h"
#include "runtime/ort_objects.h"

namespace onnxbolt {

constexpr int64_t kUnknown = -1;

inline int64_t Elements(const ort::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A node's attributes, wherever they are read from.
struct Attributes {
  virtual ~Attributes() = default;
  virtual ort::Shape Ints(const char* name) const = 0;  // empty where absent
  virtual std::vector<float> Floats(const char* name) const = 0;
  virtual int64_t Int(const char* name, int64_t otherwise) const = 0;
  virtual float Float(const char* name, float otherwise) const = 0;
};

// The window that a convolution or pooling slides over height and width; what is one-dimensional
// has height 1.
struct Window {
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1}, begin[2] = {0, 0},
          end[2] = {0, 0};
  bool ceil_mode = false;

  int64_t Extent(int axis, int64_t input) const;
  bool Keeps(int axis) const;  // the output's extent is the input's, whatever that is
};

// NHWC, or NLC as height 1.
struct Image {
  explicit Image(const ort::Shape& shape);
  int64_t n, h, w, c;
};

// What a resizing makes of height and width: `sizes`, or what `scales` say. The others say how
// (ONNX, Resize).
struct Resizing {
  ort::Shape sizes;
  std::vector<float> scales;
  ort::Shape sampling;  // its mode, coordinates and rounding
  float cubic_coeff_a;
  bool exclude_outside;

  int64_t Extent(int axis, int64_t input) const;
  float Scale(int axis, int64_t input) const;
  bool Keeps(int axis) const { return sizes.empty() && scales[axis] == 1.f; }
};

// What a node's attributes say about shapes. The members throw where ranks or channels do not fit.
struct Geometry {
  Geometry(Kind kind, const Attributes& attributes);

  Window WindowOver(const ort::Shape& x, const ort::Shape& weight) const;
  // `weight`: where a node has several, see WeightShape.
  ort::Shape Output(const ort::Shape& x, const ort::Shape& weight) const;
  // x, of the first input's channels.
  ort::Shape Channels(ort::Shape input) const;
  // The output of a convolution, all of whose channels are given, as it is written with its
  // channels first: without those of padding.
  ort::Shape Planes(ort::Shape y) const;
  // The output with the channels around the node's own.
  ort::Shape Whole(ort::Shape own) const;

  Kind kind;
  Window window;  // without the extent that a filter or a whole image gives it
  int64_t groups;
  bool count_include_pad;
  int64_t padding;  // channels of zeros that a change of layout appends, or takes away
  int64_t before,
      after;  // channels of the output that other nodes write: it is a Concat of their results
  int64_t begin, end;  // the channels of the first input that are x; all of them where both are 0
  Resizing resizing;
};

// A list by axis of [N, C, ..] as one of [N, .., C], or back.
template <class List>
List ChangeLayout(Kind kind, List list) {
  if (kind == Kind::kToNhwc)
    std::rotate(list.begin() + 1, list.begin() + 2, list.end());
  else
    std::rotate(list.begin() + 1, list.end() - 1, list.end());
  return list;
}

// The shape of the only weight. Of several: the last one's, and of a chain of convolutions the
// first one's with the last one's channels.
ort::Shape WeightShape(const Op& op, ort::Shape first, const ort::Shape& last);

// Of an x that a first convolution reads as [N, C, H, W]: its shape as the other convolutions have
// it. Throws where it is another.
ort::Shape ChannelsLast(const ort::Shape& planes);

// What an op writes where a convolution makes `y`: that, or the means over its images.
ort::Shape Written(const Op& op, ort::Shape y);

}  // namespace onnxbolt
