// FusedGemm of several layers: y = epilogue_l(.. epilogue_0(x W_0^T) .. W_l^T).
#include "ops/gemm_chain/arguments.h"
#include "ops/shared/layers.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class GemmChain : public Operation {
 public:
  GemmChain(const Op& op, const Attributes& attributes)
      : op_(op), params_(attributes.Floats("epilogue_params")) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("weight", weight, 2);
    if (x.empty()) Refuse("x is a scalar, expected [.., K]");
    return RowsOf(x, weight[0]);
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x.back() = "";
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    constexpr int64_t kMostPadding =
        7;  // zeros that make the first weight's rows multiples of 16 bytes
    ChainArguments arguments = ReadLayers(op_, t, params_, false);
    arguments.ldw = arguments.k, arguments.k = t.x_shape.back();
    const int64_t padding = arguments.ldw - arguments.k;
    if (padding < 0 || padding > kMostPadding)
      RequireShape(1, ort::ShapeOf(t.buffers->Input(1)), {arguments.n[0], arguments.k});
    return run(&arguments);
  }

 private:
  const Op& op_;
  const std::vector<float> params_;
};

const RegisteredKind<GemmChain> kGemmChain("gemm_chain", Cut::kRows, Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
