#include "runtime/placement.h"

namespace onnxbolt {

using ort::Shape;
using ort::ToString;

Placement::Placement(const Attributes& attributes) : padding(attributes.Int("padding", 0)) {
  const Shape around = attributes.Ints("around");  // as Pad's pads
  before = around.empty() ? 0 : around[around.size() / 2 - 1],
  after = around.empty() ? 0 : around.back();
  if (around.size() % 2 != 0 || before < 0 || after < 0) Refuse("attribute around is damaged");
  const Shape channels = attributes.Ints("channels");
  begin = channels.size() == 2 ? channels[0] : 0, end = channels.size() == 2 ? channels[1] : 0;
  if (channels.size() % 2 != 0 || begin < 0 || end < begin) Refuse("attribute channels is damaged");
}

Shape Placement::Channels(Shape input) const {
  if (end == 0) return input;
  if (input.back() != kUnknown && input.back() < end)
    Refuse("input 0 has shape " + ToString(input) + ", and the node reads its channels up to " +
           std::to_string(end));
  input.back() = end - begin;
  return input;
}

Shape Placement::Nchw(Shape y) const {
  if (padding < 0 || (y.back() != kUnknown && y.back() <= padding))
    Refuse("y has " + std::to_string(y.back()) + " channels, which does not fit a padding of " +
           std::to_string(padding));
  if (y.back() != kUnknown) y.back() -= padding;
  return ChannelsToFirst(y);
}

Shape Placement::Whole(Shape own) const {
  if (own.back() != kUnknown) own.back() += before + after;
  return own;
}

Shape Written(const Op& op, Shape y) {
  if (op.means) std::fill(y.begin() + 1, y.end() - 1, 1);
  return y;
}

Shape ChannelsLast(const Shape& nchw) {
  RequireRank("x", nchw, 4);
  return ChannelsToLast(nchw);
}

}  // namespace onnxbolt
