// GroupNorm of lines, images and volumes with their channels last, with an epilogue. Inputs: x,
// gamma, beta, vectors of each image (one that is added to x; scale and shift), the epilogue's
// operands.
#include "ops/group_norm/arguments.h"

#include <algorithm>
#include <cstring>

#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class GroupNorm : public Operation {
 public:
  GroupNorm(const Op& op, const Attributes& attributes)
      : op_(op),
        groups_(attributes.Int("groups", 0)),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        images_(std::count(op.operands, op.operands + std::strlen(op.operands), 'i')) {
    if (groups_ <= 0) Refuse("attribute groups is missing or not positive");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    if (x.size() < 3 || x.size() > 5)
      Refuse("x has shape " + ort::ToString(x) + ", expected [N, .., C] of rank 3 to 5");
    if (x.back() != kUnknown && x.back() % groups_)
      Refuse("the channels of x " + ort::ToString(x) + " are no multiple of attribute groups");
    return x;
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const int64_t n = t.x_shape[0], pixels = n ? t.rows() / n : 0, c = t.x_shape.back();
    GroupNormArguments a{};
    a.n = AsInt(n), a.pixels = AsInt(pixels), a.channels = AsInt(c), a.groups = AsInt(groups_);
    a.epsilon = epsilon_;
    a.x = t.x_data, a.y = t.y_data, a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    a.gamma = Factor(t, kGamma), a.beta = Factor(t, kGamma + 1);
    size_t input = kGamma + 2;
    if (images_ % 2) a.before = OfImages(t, input++);
    if (images_ > 1) a.scale = OfImages(t, input), a.shift = OfImages(t, input + 1);
    a.epilogue = t.epilogue;
    return run(&a);
  }

 private:
  static constexpr size_t kGamma = 1;

  static const float* Factor(const Tensors& t, size_t index) {
    const OrtValue* value = t.buffers->Input(index);
    RequireShape(index, ort::ShapeOf(value), {t.x_shape.back()});
    return static_cast<const float*>(t.buffers->Read(value, kTypeF32));
  }

  // The vectors of a slice's images, of an input [N, C, 1, 1].
  const void* OfImages(const Tensors& t, size_t index) const {
    const OrtValue* value = t.buffers->Input(index);
    Shape expected(t.whole_y.size(), 1);
    expected[0] = t.whole_y[0], expected[1] = t.x_shape.back();
    RequireShape(index, ort::ShapeOf(value), expected);
    const int64_t pixels = t.rows() / t.x_shape[0];
    return Behind(t.buffers->Read(value, op_.element), t.first_row / pixels * expected[1],
                  op_.element);
  }

  const Op& op_;
  const int64_t groups_;
  const float epsilon_;
  const std::ptrdiff_t images_;  // vectors of each image
};

const RegisteredKind<GroupNorm> kGroupNorm("group_norm");

}  // namespace
}  // namespace onnxbolt
