// Resize in NHWC with an epilogue: height and width are sizes, or scales times the input's (ONNX,
// Resize), by attributes or by the first input behind x: the sizes that ONNX's node has, in the
// host's memory, or a tensor that has them.
#include <algorithm>
#include <array>

#include "ops/resize/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;
using Extents = std::array<int64_t, 2>;  // height and width

// `op` outlives the node.
class Resize : public Operation {
 public:
  Resize(const Op& op, const Attributes& attributes)
      : op_(op),
        sizes_(attributes.Ints("sizes")),
        scales_(attributes.Floats("scales")),
        at_run_time_(sizes_.empty() && scales_.empty()),
        sampling_(attributes.Ints("sampling")),
        params_(attributes.Floats("epilogue_params")),
        cubic_coeff_a_(attributes.Float("cubic_coeff_a", -0.75f)),
        exclude_outside_(attributes.Int("exclude_outside", 0) != 0) {
    if (at_run_time_ ? !*op.operands : sizes_.size() + scales_.size() != 2)
      Refuse("a resizing has two sizes or two scales, or an input that gives its sizes");
    if (sampling_.size() != 3) Refuse("attribute sampling has to have three numbers");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 4);
    // a tensor of the epilogue may have more pixels where the resized image has one
    const Extents y = HasTensors() ? Extents{kUnknown, kUnknown} : Resized(x);
    return {x[0], y[0], y[1], x[3]};
  }

  Shape OutputOfRun(const Shape& x, const Shape&, const Buffers& inputs) const override {
    RequireRank("x", x, 4);
    Extents y = Resized(x, inputs);
    if (*op_.operands == 's') RequireImages(x, inputs);
    ForEachOperand([&](size_t input, bool vector) {
      if (!vector) y = Broadcast(y, input, ort::ShapeOf(inputs.Input(input)), x);
    });
    return {x[0], y[0], y[1], x[3]};
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    for (int axis : {0, 1}) x[axis + 1] = Name(axis, x[axis + 1]);
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape), y(t.y_shape);
    const Extents resized = Resized(t.x_shape, *t.buffers);
    ResizeArguments a{};
    a.mode = static_cast<ResizeMode>(sampling_[0]);
    a.coordinates = static_cast<Coordinates>(sampling_[1]),
    a.rounding = static_cast<Rounding>(sampling_[2]);
    a.cubic_coeff_a = cubic_coeff_a_, a.exclude_outside = exclude_outside_;
    a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c);
    a.p = AsInt(resized[0]), a.q = AsInt(resized[1]), a.y_h = AsInt(y.h), a.y_w = AsInt(y.w);
    a.scale_h = Scale(0, x.h, resized), a.scale_w = Scale(1, x.w, resized);
    a.x = t.x_data, a.y = t.y_data;
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    ReadEpilogue(t, a);
    return run(&a);
  }

 private:
  // Calls visit(input, is a vector) for each operand of the epilogue.
  template <class Visit>
  void ForEachOperand(const Visit& visit) const {
    for (size_t i = at_run_time_; op_.operands[i]; ++i) {
      if (op_.operands[i] == 'v' || op_.operands[i] == 't')
        visit(op_.first_operand + i, op_.operands[i] == 'v');
    }
  }

  bool HasTensors() const {
    bool found = false;
    ForEachOperand([&](size_t, bool vector) { found |= !vector; });
    return found;
  }

  // The operands of a slice's images. Tensors have all images.
  void ReadEpilogue(const Tensors& t, ResizeArguments& a) const {
    std::copy(params_.begin(), params_.end(), a.epilogue.params);
    const int64_t first_image = t.first_row / (int64_t{a.y_h} * a.y_w);
    size_t vectors = 0, tensors = 0;
    ForEachOperand([&](size_t input, bool vector) {
      const OrtValue* value = t.buffers->Input(input);
      const Shape shape = ort::ShapeOf(value);
      if (vector) {
        RequireShape(input, shape, {a.c});
        a.epilogue.vectors[vectors++] = static_cast<const float*>(t.buffers->Read(value, kTypeF32));
        return;
      }
      const Image image(shape);
      a.tensor_h[tensors] = AsInt(image.h), a.tensor_w[tensors] = AsInt(image.w);
      a.epilogue.tensor_pitch[tensors] = image.c;
      a.epilogue.tensors[tensors++] =
          Behind(t.buffers->Read(value, op_.element), first_image * image.h * image.w * image.c,
                 op_.element);
    });
  }

  // Height and width of y and of a tensor of the epilogue, one of which may have a single pixel
  // where the other has several.
  static Extents Broadcast(Extents y, size_t input, const Shape& tensor, const Shape& x) {
    bool fits = tensor.size() == 4 && tensor[0] == x[0] && tensor[3] == x[3];
    for (int axis = 0; fits && axis < 2; ++axis) {
      const int64_t extent = tensor[axis + 1];
      fits = extent == y[axis] || extent == 1 || y[axis] == 1;
      if (y[axis] == 1) y[axis] = extent;
    }
    if (!fits)
      Refuse("input " + std::to_string(input) + " has shape " + ort::ToString(tensor) +
             ", which does not broadcast with " + ort::ToString({x[0], y[0], y[1], x[3]}));
    return y;
  }

  // The resized height and width as far as x and attributes give them.
  Extents Resized(const Shape& x) const {
    if (at_run_time_) return {kUnknown, kUnknown};
    if (!sizes_.empty()) return {sizes_[0], sizes_[1]};
    return {Scaled(0, x[1]), Scaled(1, x[2])};
  }

  Extents Resized(const Shape& x, const Buffers& inputs) const {
    if (!at_run_time_) return Resized(x);
    const OrtValue* value = inputs.Input(op_.first_operand);
    const Shape shape = ort::ShapeOf(value);
    if (*op_.operands != 's') {
      RequireRank("the tensor that gives sizes", shape, 4);
      return {shape[1], shape[2]};
    }
    RequireShape(op_.first_operand, shape, {4});
    const auto* sizes = static_cast<const int64_t*>(ort::DataOf(value));
    if (sizes[2] < 0 || sizes[3] < 0)
      Refuse("the sizes of a resizing are negative: " + ort::ToString({sizes, sizes + 4}));
    return {sizes[2], sizes[3]};
  }

  void RequireImages(const Shape& x, const Buffers& inputs) const {
    const int64_t images =
        *static_cast<const int64_t*>(ort::DataOf(inputs.Input(op_.first_operand)));
    if (images != x[0])
      Refuse(std::to_string(images) + " images are wanted of x " + ort::ToString(x));
  }

  int64_t Scaled(int axis, int64_t input) const {
    return input == kUnknown
               ? kUnknown
               : static_cast<int64_t>(scales_[axis] *
                                      static_cast<float>(input));  // as ONNX Runtime does it
  }

  float Scale(int axis, int64_t input, const Extents& resized) const {
    return scales_.empty() ? static_cast<float>(resized[axis]) / static_cast<float>(input)
                           : scales_[axis];
  }

  // A name for an extent that a scale gives. It is the formula, so that equal extents, and only
  // they, are equally named.
  std::string Name(int axis, const std::string& input) const {
    if (at_run_time_ || HasTensors()) return "";
    if (input.empty() || (sizes_.empty() && scales_[axis] == 1.f)) return input;
    return sizes_.empty() ? "floor(" + input + "*" + std::to_string(scales_[axis]) + ")" : "";
  }

  const Op& op_;
  const Shape sizes_;
  const std::vector<float> scales_;
  const bool at_run_time_;  // the first input behind x gives the sizes
  const Shape sampling_;    // mode, coordinates and rounding
  const std::vector<float> params_;
  const float cubic_coeff_a_;
  const bool exclude_outside_;
};

const RegisteredKind<Resize> kResize("resize", Cut::kImages, Operands::kOwn);
const RegisteredKind<Resize> kGate("quantized_gate", Cut::kImages, Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
