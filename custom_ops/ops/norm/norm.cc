// LayerNorm and RmsNorm over the last axis of x, or of x plus a residual. Inputs: x, the residual,
// gamma, beta; outputs: y, and the sum of x and the residual.
//
// TokenLayerNorm and TokenRmsNorm: of sequences x [batch, tokens, columns], to each of which the
// same rows are added, [tokens, columns]. With `prefix`, the first rows of a sequence are these
// rows alone, and x has so many tokens less.
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

// `op` outlives the node.
template <bool kCentered>
class TokenNorm : public Operation {
 public:
  TokenNorm(const Op& op, const Attributes& attributes)
      : op_(op),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        prefix_(attributes.Int("prefix", 0)) {
    if (prefix_ < 0) Refuse("attribute prefix is negative");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 3);
    return {x[0], x[1] == kUnknown ? kUnknown : x[1] + prefix_, x[2]};
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (prefix_) x[1].clear();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    NormArguments arguments{t.rows(),
                            AsInt(t.x_shape.back()),
                            kCentered,
                            epsilon_,
                            t.x_data,
                            t.y_data,
                            t.stored_data,
                            t.x_pitch,
                            t.y_pitch,
                            Read(t),
                            AsInt(t.y_shape[1]),
                            AsInt(prefix_)};
    return run(&arguments);
  }

 private:
  // The rows that are added, gamma and beta.
  EpilogueArguments Read(const Tensors& t) const {
    EpilogueArguments epilogue;
    const int64_t columns = t.y_shape.back();
    size_t vectors = 0;
    for (size_t i = 0; op_.operands[i]; ++i) {
      const size_t index = op_.first_operand + i;
      const OrtValue* value = t.buffers->Input(index);
      const bool vector = op_.operands[i] == 'v';
      RequireShape(index, ort::ShapeOf(value),
                   vector ? Shape{columns} : Shape{t.y_shape[1], columns});
      const void* data = t.buffers->Read(value, vector ? kTypeF32 : op_.element);
      if (vector) {
        epilogue.vectors[vectors++] = static_cast<const float*>(data);
      } else {
        epilogue.tensors[0] = data, epilogue.tensor_pitch[0] = columns;
      }
    }
    return epilogue;
  }

  const Op& op_;
  const float epsilon_;
  const int64_t prefix_;
};

const RegisteredKind<Norm<true>> kLayerNorm("layer_norm", Cut::kRows);
const RegisteredKind<Norm<false>> kRmsNorm("rms_norm", Cut::kRows);
const RegisteredKind<TokenNorm<true>> kTokenLayerNorm("token_layer_norm", Cut::kImages,
                                                      Operands::kOwn);
const RegisteredKind<TokenNorm<false>> kTokenRmsNorm("token_rms_norm", Cut::kImages,
                                                     Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
