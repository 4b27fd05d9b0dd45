// FusedGemm: y[.., N] = epilogue(x[.., K] weight[N, K]^T). It may write the statistics of y's rows,
// and read those of x's, which it normalizes.
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Gemm : public Operation {
 public:
  Gemm(const Op& op, const Attributes&)
      : statistics_(op.operands[0] == 'f' ? op.first_operand : 0) {}

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
    GemmArguments arguments{t.rows(),  n,     k,         t.x_data,   t.weight_data, t.y_data,
                            t.x_pitch, pitch, t.y_pitch, t.epilogue, t.stored_data};
    if (statistics_ > 0 || t.moments) {
      // parts of statistics lie as far apart as a launch has rows
      if (t.rows() != Elements(t.whole_y) / n)
        return "statistics of rows are those of one launch, and there are too many rows for that";
      arguments.moments_of_d = t.moments;
      if (statistics_ > 0) arguments.moments_of_a = Statistics(t);
    }
    return run(&arguments);
  }

 private:
  const float* Statistics(const Tensors& t) const {
    const OrtValue* value = t.buffers->Input(statistics_);
    RequireShape(statistics_, ort::ShapeOf(value), MomentsShape({t.rows(), t.x_shape.back()}));
    return static_cast<const float*>(t.buffers->Read(value, kTypeF32));
  }

  const size_t statistics_;  // the input that holds those of x's rows; 0 if there is none
};

const RegisteredKind<Gemm> kGemm("gemm", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
