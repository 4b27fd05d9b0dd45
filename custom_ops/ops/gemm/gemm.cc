// FusedGemm: y[.., N] = epilogue(x[.., K] weight[N, K]^T).
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Gemm : public Operation {
 public:
  Gemm(const Op&, const Attributes&) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("weight", weight, 2);
    if (x.empty()) Refuse("x is a scalar, expected [.., K]");
    const int64_t whole =
        (x.back() + 7) / 8 * 8;  // rows of 16 bytes, for kernels that read x's of any length
    if (weight[1] != whole) RequireChannels(x, weight, 1);
    return RowsOf(x, weight[0]);
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x.back() = "";
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const int64_t n = t.weight_shape[0], k = t.x_shape.back(),
                  pitch = t.weight_shape[1];  // zeros may stand behind the weight's k values
    const GemmArguments arguments{t.rows(), n,         k,     t.x_data,  t.weight_data,
                                  t.y_data, t.x_pitch, pitch, t.y_pitch, t.epilogue};
    return run(&arguments);
  }
};

const RegisteredKind<Gemm> kGemm("gemm", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
