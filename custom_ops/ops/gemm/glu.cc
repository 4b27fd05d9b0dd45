// FusedGlu: y[.., N] = epilogue(x[.., K] weight[2 N, K]^T), in whose steps a gate multiplies 8
// columns of the product by the 8 columns behind them.
#include "ops/shared/rows.h"

namespace onnxbolt {
namespace {

using ort::Shape;

constexpr int64_t kTurn = 16;  // rows of the weight for 8 columns of y

class Glu : public RowProduct {
 public:
  Glu(const Op&, const Attributes&) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    const Shape product = RowProduct::Output(x, weight);
    if (weight[0] == kUnknown) return product;
    if (weight[0] % kTurn != 0)
      Refuse("weight " + ort::ToString(weight) + " has rows in turns of 8, so that there are" +
             " multiples of 16");
    return RowsOf(x, weight[0] / 2);
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const GemmArguments arguments = Arguments(t);
    return run(&arguments);
  }
};

const RegisteredKind<Glu> kGlu("glu", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
