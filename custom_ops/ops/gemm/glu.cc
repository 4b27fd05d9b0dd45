// FusedGlu: y[.., N] = epilogue(x[.., K] weight[2 N, K]^T), in whose steps a gate multiplies 8
// columns of the product by the 8 columns behind them.
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

constexpr int64_t kTurn = 16;  // rows of the weight for 8 columns of y

class Glu : public Operation {
 public:
  Glu(const Op&, const Attributes&) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("weight", weight, 2);
    if (x.empty()) Refuse("x is a scalar, expected [.., K]");
    RequireChannels(x, weight, 1);
    if (weight[0] == kUnknown) return RowsOf(x, kUnknown);
    if (weight[0] % kTurn != 0)
      Refuse("weight " + ort::ToString(weight) + " has rows in turns of 8, so that there are" +
             " multiples of 16");
    return RowsOf(x, weight[0] / 2);
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x.back() = "";
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const int64_t n = t.weight_shape[0] / 2, k = t.x_shape.back();
    const GemmArguments arguments{t.rows(), n,         k, t.x_data,  t.weight_data,
                                  t.y_data, t.x_pitch, k, t.y_pitch, t.epilogue};
    return run(&arguments);
  }
};

const RegisteredKind<Glu> kGlu("glu", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
