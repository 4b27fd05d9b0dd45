// ScaledSoftmax: y[.., C] = softmax(scale x[.., C]) over the last axis.
#include "ops/scaled_softmax/arguments.h"
#include "runtime/operation.h"

namespace extending {
namespace {

using onnxbolt::Symbols;
using onnxbolt::ort::Shape;

class ScaledSoftmax : public onnxbolt::Operation {
 public:
  ScaledSoftmax(const onnxbolt::Op&, const onnxbolt::Attributes& attributes)
      : scale_(attributes.Float("scale", 1.f)) {}

  Shape Output(const Shape& x, const Shape&) const override { return x; }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const onnxbolt::Tensors& t, const onnxbolt::Run& run) const override {
    const ScaledSoftmaxArguments arguments{t.rows(),  t.x_shape.back(), t.x_data, t.y_data,
                                           t.x_pitch, t.y_pitch,        scale_};
    return run(&arguments);
  }

 private:
  const float scale_;
};

const onnxbolt::RegisteredKind<ScaledSoftmax> kScaledSoftmax("scaled_softmax",
                                                             onnxbolt::Cut::kRows);

}  // namespace
}  // namespace extending
