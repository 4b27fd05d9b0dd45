// FusedGemm: y[.., N] = epilogue(x[.., K] weight[N, K]^T).
#include "ops/shared/rows.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Gemm : public RowProduct {
 public:
  Gemm(const Op&, const Attributes&) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    if (weight.size() == 2 && !x.empty() && weight[1] == Whole(x.back()))
      return RowsOf(x, weight[0]);
    return RowProduct::Output(x, weight);
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const GemmArguments arguments = Arguments(t);
    return run(&arguments);
  }

 private:
  // Rows of 16 bytes, for kernels that read x's of any length.
  static int64_t Whole(int64_t columns) { return (columns + 7) / 8 * 8; }
};

const RegisteredKind<Gemm> kGemm("gemm", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
