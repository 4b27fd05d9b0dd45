// The places of a node's channels in its first input and in its output, which it may share with
// other nodes (onnxbolt/layout/slices.py).
#pragma once
#include "runtime/attributes.h"
#include "runtime/manifest.h"
#include "runtime/shapes.h"

namespace onnxbolt {

struct Placement {
  explicit Placement(const Attributes& attributes);

  // The shape of x, from the first input's.
  ort::Shape Channels(ort::Shape input) const;
  // The shape of an NHWC output, given with all channels, as NCHW without the channels of padding.
  ort::Shape Nchw(ort::Shape y) const;
  // The shape of the output with the channels around the node's own.
  ort::Shape Whole(ort::Shape own) const;

  int64_t padding;  // channels of zeros at the end of the output that its NCHW layout lacks
  int64_t before,
      after;  // channels of the output that other nodes write: the output is a Concat of their
              // results
  int64_t begin, end;  // the channels of the first input that are x; all if both are 0
};

// The shape in NHWC of an x that a node reads as NCHW. Throws for another rank.
ort::Shape ChannelsLast(const ort::Shape& nchw);

// The shape that an op writes of `y`: all, or the means over its images.
ort::Shape Written(const Op& op, ort::Shape y);

}  // namespace onnxbolt
