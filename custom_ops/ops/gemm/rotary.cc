// FusedRotary: y[.., N] = epilogue(x[.., K] weight[N, K]^T), in whose steps pairs of neighbouring
// columns of the first `rotated_columns` are rotated by a table [.., W]: row r of y by the table's
// row r mod P, column c by its column c mod W.
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Rotary : public Operation {
 public:
  Rotary(const Op&, const Attributes& attributes)
      : columns_(attributes.Int("rotated_columns", 0)) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("weight", weight, 2);
    if (x.empty()) Refuse("x is a scalar, expected [.., K]");
    RequireChannels(x, weight, 1);
    if (columns_ < 1 || (weight[0] != kUnknown && columns_ > weight[0]))
      Refuse("attribute rotated_columns is " + std::to_string(columns_) + ", and weight " +
             ort::ToString(weight));
    return RowsOf(x, weight[0]);
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x.back() = "";
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const int64_t n = t.weight_shape[0], k = t.x_shape.back();
    GemmArguments arguments{t.rows(), n,         k, t.x_data,  t.weight_data,
                            t.y_data, t.x_pitch, k, t.y_pitch, t.epilogue};
    RotationArguments& rotation = arguments.epilogue.rotation;
    rotation.columns = AsInt(columns_);
    rotation.first = AsInt(t.first_row % rotation.rows);
    return run(&arguments);
  }

 private:
  int64_t columns_;
};

const RegisteredKind<Rotary> kRotary("rotary", Cut::kRows);

}  // namespace
}  // namespace onnxbolt
