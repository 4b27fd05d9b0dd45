// FusedElementwise, FusedQuantizedElementwise, FusedQuantize: y[.., C] = epilogue(x[.., C]).
#include "ops/elementwise/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Elementwise : public Operation {
 public:
  Elementwise(const Op&, const Attributes&) {}

  Shape Output(const Shape& x, const Shape&) const override { return x; }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const ElementwiseArguments arguments{
        t.rows(), AsInt(t.x_shape.back()), t.x_data, t.y_data, t.x_pitch, t.y_pitch, t.epilogue};
    return run(&arguments);
  }
};

const RegisteredKind<Elementwise> kElementwise("elementwise", Cut::kRows);
const RegisteredKind<Elementwise> kOfCodes("quantized_elementwise", Cut::kRows);
const RegisteredKind<Elementwise> kToCodes("quantize", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
