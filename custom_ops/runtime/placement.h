// Where a node's channels lie in its first input and in its output, which other nodes may share
// with it (layout/slices.py).
#pragma once
#include "runtime/attributes.h"
#include "runtime/manifest.h"
#include "runtime/shapes.h"

namespace onnxbolt {

struct Placement {
  explicit Placement(const Attributes& attributes);

  // x, of the first input's channels.
  ort::Shape Channels(ort::Shape input) const;
  // The NHWC output, all of whose channels are given, as NCHW without those of padding.
  ort::Shape Nchw(ort::Shape y) const;
  // The output with the channels around the node's own.
  ort::Shape Whole(ort::Shape own) const;

  int64_t padding;  // channels of zeros at the end of the output that NCHW is without
  int64_t before,
      after;  // channels of the output that other nodes write: it is a Concat of their results
  int64_t begin, end;  // the channels of the first input that are x; all of them where both are 0
};

// The shape in NHWC of an x that a node reads as NCHW. Throws where it has another rank.
ort::Shape ChannelsLast(const ort::Shape& nchw);

// What an op writes of `y`: all, or the means over its images.
ort::Shape Written(const Op& op, ort::Shape y);

}  // namespace onnxbolt
