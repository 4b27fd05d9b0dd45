// FusedRotary: y[.., N] = epilogue(x[.., K] weight[N, K]^T), in whose steps pairs of neighbouring
// columns of the first `rotated_columns` are rotated by a table [.., W]: row r of y by the table's
// row r mod P, column c by its column c mod W.
#include "ops/shared/rows.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class Rotary : public RowProduct {
 public:
  Rotary(const Op&, const Attributes& attributes)
      : columns_(attributes.Int("rotated_columns", 0)) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    const Shape product = RowProduct::Output(x, weight);
    if (columns_ < 1 || (weight[0] != kUnknown && columns_ > weight[0]))
      Refuse("attribute rotated_columns is " + std::to_string(columns_) + ", and weight " +
             ort::ToString(weight));
    return product;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    GemmArguments arguments = Arguments(t);
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
