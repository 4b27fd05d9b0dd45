// DepthToSpace and SpaceToDepth in NHWC (ONNX), with an epilogue.
#include "ops/pixel_shuffle/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <bool ToSpace>
class PixelShuffle : public Operation {
 public:
  PixelShuffle(const Op&, const Attributes& attributes)
      : block_(attributes.Int("blocksize", 0)), by_channel_(attributes.Int("by_channel", 0) != 0) {
    if (block_ < 1 || block_ > kMostBlock) Refuse("attribute blocksize is missing or too large");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 4);
    const int64_t pixels = block_ * block_;
    if (ToSpace) return {x[0], Times(x[1], block_), Times(x[2], block_), Part(x, 3, pixels)};
    return {x[0], Part(x, 1, block_), Part(x, 2, block_), Times(x[3], pixels)};
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (block_ == 1) return x;
    for (int axis : {1, 2}) {
      if (!x[axis].empty())
        x[axis] = ToSpace ? x[axis] + "*" + std::to_string(block_)
                          : "floor(" + x[axis] + "/" + std::to_string(block_) + ")";
    }
    x[3].clear();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape), y(t.y_shape), &small = ToSpace ? x : y, &large = ToSpace ? y : x;
    PixelShuffleArguments a{};
    a.to_space = ToSpace, a.by_channel = by_channel_;
    a.n = AsInt(x.n), a.h = AsInt(small.h), a.w = AsInt(small.w), a.c = AsInt(large.c);
    a.block = AsInt(block_);
    a.x = t.x_data, a.y = t.y_data, a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    a.epilogue = t.epilogue;
    return run(&a);
  }

 private:
  static constexpr int64_t kMostBlock = 1024;

  static int64_t Times(int64_t size, int64_t factor) {
    return size == kUnknown ? kUnknown : size * factor;
  }

  static int64_t Part(const Shape& x, int axis, int64_t factor) {
    if (x[axis] == kUnknown) return kUnknown;
    if (x[axis] % factor != 0)
      Refuse("x has shape " + ort::ToString(x) + ": axis " + std::to_string(axis) +
             " is no multiple of " + std::to_string(factor));
    return x[axis] / factor;
  }

  const int64_t block_;
  const bool by_channel_;
};

const RegisteredKind<PixelShuffle<true>> kToSpace("depth_to_space");
const RegisteredKind<PixelShuffle<false>> kToDepth("space_to_depth");

}  // namespace
}  // namespace onnxbolt
