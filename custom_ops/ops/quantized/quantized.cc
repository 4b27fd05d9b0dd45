// Products of codes of 8 bits (docs/decisions/quantized.md):
// FusedQuantizedGemm: y[.., N] = epilogue(x[.., K] weight[N, K]^T + offsets[N]), and
// FusedQuantizedConv: y[N, P, Q, K] = epilogue(x[N, H, W, C] * weight[K, R, S, C] + offsets[class
// of the pixel, K]). Nodes whose zero point of x is 0 have no offsets.
#include "ops/quantized/arguments.h"
#include "ops/shared/convolution.h"
#include "ops/shared/rows.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// The offsets of a node: its first operand, [classes, N].
class Offsets {
 public:
  Offsets(const Op& op, const Attributes& attributes)
      : given_(op.operands[0] == 'o'), input_(op.first_operand) {
    const int64_t zero = zero_ = attributes.Int("x_zero", 0);
    const int64_t least = op.element == kTypeI8 ? -128 : 0, most = op.element == kTypeU8   ? 255
                                                                   : op.element == kTypeI8 ? 127
                                                                                           : 0;
    if (zero < least || zero > most || (zero != 0) != given_)
      Refuse("attribute x_zero is " + std::to_string(zero) + ", which does not fit " +
             (given_ ? "" : "the absence of ") + "offsets for x of " + TypeName(op.element));
    const std::vector<float> params = attributes.Floats("epilogue_params");
    if (params.empty() || !(params[0] > 0))
      Refuse("attribute epilogue_params lacks the scale of x");
  }

  OffsetArguments Read(const Tensors& t) const {
    if (!given_) return {};
    const OrtValue* table = t.buffers->Input(input_);
    const Shape shape = ort::ShapeOf(table);
    const int64_t classes = shape.empty() ? 0 : shape[0];
    RequireShape(input_, shape, {std::max<int64_t>(classes, 1), t.y_shape.back()});
    return {static_cast<const int32_t*>(t.buffers->Read(table, kTypeI32)), AsInt(classes),
            AsInt(zero_)};
  }

 private:
  const bool given_;
  const size_t input_;
  int64_t zero_ = 0;
};

class QuantizedGemm : public RowProduct {
 public:
  QuantizedGemm(const Op& op, const Attributes& attributes) : offsets_(op, attributes) {}

  const char* Launch(const Tensors& t, const Run& run) const override {
    const QuantizedGemmArguments arguments{Arguments(t), offsets_.Read(t), t.stored_data};
    return run(&arguments);
  }

 private:
  const Offsets offsets_;
};

class QuantizedConv : public Convolution {
 public:
  QuantizedConv(const Op& op, const Attributes& attributes)
      : Convolution(op, attributes, 4), offsets_(op, attributes) {}

  const char* Launch(const Tensors& t, const Run& run) const override {
    const QuantizedConvArguments arguments{Arguments(t), offsets_.Read(t), t.stored_data};
    return run(&arguments);
  }

 private:
  const Offsets offsets_;
};

const RegisteredKind<QuantizedGemm> kQuantizedGemm("quantized_gemm", Cut::kRows);
const RegisteredKind<QuantizedConv> kQuantizedConv("quantized_conv");

}  // namespace
}  // namespace onnxbolt
