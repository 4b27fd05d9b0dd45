// Resize in NHWC: height and width are sizes, or scales times the input's (ONNX, Resize).
#include "ops/resize/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Resize : public Operation {
 public:
  Resize(const Op&, const Attributes& attributes)
      : sizes_(attributes.Ints("sizes")),
        scales_(attributes.Floats("scales")),
        sampling_(attributes.Ints("sampling")),
        cubic_coeff_a_(attributes.Float("cubic_coeff_a", -0.75f)),
        exclude_outside_(attributes.Int("exclude_outside", 0) != 0) {
    if (sizes_.size() + scales_.size() != 2) Refuse("a resizing has two sizes or two scales");
    if (sampling_.size() != 3) Refuse("attribute sampling has to have three numbers");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 4);
    return {x[0], Extent(0, x[1]), Extent(1, x[2]), x[3]};
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    for (int axis : {0, 1}) x[axis + 1] = Name(axis, x[axis + 1]);
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape), y(t.y_shape);
    ResizeArguments a{};
    a.mode = static_cast<ResizeMode>(sampling_[0]);
    a.coordinates = static_cast<Coordinates>(sampling_[1]),
    a.rounding = static_cast<Rounding>(sampling_[2]);
    a.cubic_coeff_a = cubic_coeff_a_, a.exclude_outside = exclude_outside_;
    a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
    a.q = AsInt(y.w);
    a.scale_h = Scale(0, x.h), a.scale_w = Scale(1, x.w);
    a.x = t.x_data, a.y = t.y_data;
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    return run(&a);
  }

 private:
  int64_t Extent(int axis, int64_t input) const {
    if (!sizes_.empty()) return sizes_[axis];
    return input == kUnknown
               ? kUnknown
               : static_cast<int64_t>(scales_[axis] *
                                      static_cast<float>(input));  // as ONNX Runtime does it
  }

  float Scale(int axis, int64_t input) const {
    return sizes_.empty() ? scales_[axis]
                          : static_cast<float>(sizes_[axis]) / static_cast<float>(input);
  }

  // A name for an extent that a scale gives. It is the formula, so that equal extents, and only
  // they, are equally named.
  std::string Name(int axis, const std::string& input) const {
    if (input.empty() || (sizes_.empty() && scales_[axis] == 1.f)) return input;
    return sizes_.empty() ? "floor(" + input + "*" + std::to_string(scales_[axis]) + ")" : "";
  }

  const Shape sizes_;
  const std::vector<float> scales_;
  const Shape sampling_;  // mode, coordinates and rounding
  const float cubic_coeff_a_;
  const bool exclude_outside_;
};

const RegisteredKind<Resize> kResize("resize");

}  // namespace
}  // namespace onnxbolt
