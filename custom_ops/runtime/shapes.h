// Shapes of tensors, and errors for shapes that do not fit. A dimension may be kUnknown during
// shape inference.
#pragma once
#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/ort_objects.h"

namespace onnxbolt {

constexpr int64_t kUnknown = -1;

// The names of a shape's dimensions: "" for a known dimension, and for one that has no name.
using Symbols = std::vector<std::string>;

inline int64_t Elements(const ort::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

[[noreturn]] inline void Refuse(const std::string& text) {
  throw ort::Error(ort::kInvalidArgument, text);
}

inline void RequireRank(const char* what, const ort::Shape& shape, size_t rank) {
  if (shape.size() != rank)
    Refuse(std::string(what) + " has shape " + ort::ToString(shape) + ", expected rank " +
           std::to_string(rank));
}

inline void RequireShape(size_t input, const ort::Shape& shape, const ort::Shape& expected) {
  if (shape == expected) return;
  Refuse("input " + std::to_string(input) + " has shape " + ort::ToString(shape) + ", expected " +
         ort::ToString(expected));
}

// Checks a weight whose last dimension is the input channels of one of `groups`.
inline void RequireChannels(const ort::Shape& x, const ort::Shape& weight, int64_t groups) {
  const int64_t channels = x.back(), per_group = weight.back();
  if (channels != kUnknown && per_group != kUnknown && channels != per_group * groups) {
    Refuse("x " + ort::ToString(x) + " and weight " + ort::ToString(weight) + " do not fit: " +
           std::to_string(channels) + " channels, expected " + std::to_string(per_group * groups));
  }
}

inline int AsInt(int64_t value) {
  if (value > INT_MAX) Refuse("a dimension of " + std::to_string(value) + " is above 2^31 - 1");
  return static_cast<int>(value);
}

// `like` with another number of columns.
inline ort::Shape RowsOf(const ort::Shape& like, int64_t columns) {
  ort::Shape shape = like;
  shape.back() = columns;
  return shape;
}

// A list by axis of [N, C, ..] as one of [N, .., C].
template <class List>
List ChannelsToLast(List list) {
  std::rotate(list.begin() + 1, list.begin() + 2, list.end());
  return list;
}

// A list by axis of [N, .., C] as one of [N, C, ..].
template <class List>
List ChannelsToFirst(List list) {
  std::rotate(list.begin() + 1, list.end() - 1, list.end());
  return list;
}

// An image in NHWC, in NLC as one of height 1, or a volume in NDHWC; images have depth 1.
struct Image {
  explicit Image(const ort::Shape& shape)
      : n(shape.front()),
        d(shape.size() == 5 ? shape[1] : 1),
        h(shape.size() == 3 ? 1 : shape[shape.size() - 3]),
        w(shape[shape.size() - 2]),
        c(shape.back()) {}
  int64_t n, d, h, w, c;
};

}  // namespace onnxbolt
