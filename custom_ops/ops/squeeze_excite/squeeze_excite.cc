// SqueezeExcite in NHWC: y = x gate(W2 squeeze(W1 mean(x) + b1) + b2), then an epilogue. Inputs: x,
// the first weight and its bias, the second weight and its bias, tensors of the epilogue.
#include <algorithm>

#include "ops/squeeze_excite/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class SqueezeExcite : public Operation {
 public:
  SqueezeExcite(const Op& op, const Attributes& attributes)
      : op_(op), params_(attributes.Floats("epilogue_params")) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("x", x, 4);
    RequireRank("weight", weight, 2);
    if (x.back() != kUnknown && weight[0] != kUnknown && x.back() != weight[0])
      Refuse("x " + ort::ToString(x) + " and weight " + ort::ToString(weight) + " do not fit");
    return x;
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape);
    const int64_t squeezed = t.weight_shape[1];
    Buffers& buffers = *t.buffers;
    const OrtValue *squeeze = buffers.Input(1), *squeeze_bias = buffers.Input(2),
                   *excite_bias = buffers.Input(4);
    RequireShape(1, ort::ShapeOf(squeeze), {squeezed, x.c});
    RequireShape(2, ort::ShapeOf(squeeze_bias), {squeezed});
    RequireShape(4, ort::ShapeOf(excite_bias), {x.c});
    SqueezeExciteArguments a{};
    a.n = AsInt(x.n), a.pixels = AsInt(x.h * x.w), a.channels = AsInt(x.c),
    a.squeezed = AsInt(squeezed);
    a.x = t.x_data, a.squeeze = buffers.Read(squeeze, op_.element), a.excite = t.weight_data,
    a.y = t.y_data;
    a.squeeze_bias = static_cast<const float*>(buffers.Read(squeeze_bias, kTypeF32));
    a.excite_bias = static_cast<const float*>(buffers.Read(excite_bias, kTypeF32));
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    std::copy(params_.begin(), params_.end(), a.step_params);
    ReadEpilogue(t, a.epilogue);
    return run(&a);
  }

 private:
  // The tensors, of the images of a slice.
  void ReadEpilogue(const Tensors& t, EpilogueArguments& epilogue) const {
    constexpr size_t kOwn = 3;  // letters in front of theirs
    for (size_t i = kOwn; op_.operands[i] == 't'; ++i) {
      const size_t input = op_.first_operand + i, tensor = i - kOwn;
      const OrtValue* value = t.buffers->Input(input);
      RequireShape(input, ort::ShapeOf(value), t.whole_y);
      const int64_t pitch = epilogue.tensor_pitch[tensor] = t.whole_y.back();
      epilogue.tensors[tensor] =
          Behind(t.buffers->Read(value, op_.element), t.first_row * pitch, op_.element);
    }
  }

  const Op& op_;
  const std::vector<float> params_;
};

const RegisteredKind<SqueezeExcite> kSqueezeExcite("squeeze_excite", Cut::kImages, Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
