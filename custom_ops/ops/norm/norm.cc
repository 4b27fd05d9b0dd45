// LayerNorm and RmsNorm over the last axis of x, or of x plus a residual. Inputs: x, the residual,
// gamma, beta; outputs: y, and the sum of x and the residual.
#include "ops/norm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <bool kCentered>
class Norm : public Operation {
 public:
  Norm(const Op&, const Attributes& attributes) : epsilon_(attributes.Float("epsilon", 1e-5f)) {}

  Shape Output(const Shape& x, const Shape&) const override {
    if (x.empty()) Refuse("x is a scalar, expected [.., C]");
    return x;
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const NormArguments arguments{
        t.rows(), AsInt(t.x_shape.back()), kCentered, epsilon_,  t.x_data,
        t.y_data, t.stored_data,           t.x_pitch, t.y_pitch, t.epilogue};
    return run(&arguments);
  }

 private:
  const float epsilon_;
};

const RegisteredKind<Norm<true>> kLayerNorm("layer_norm", Cut::kRows);
const RegisteredKind<Norm<false>> kRmsNorm("rms_norm", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
