#include "ops/shared/rows.h"

namespace onnxbolt {

using ort::Shape;

Shape RowProduct::Output(const Shape& x, const Shape& weight) const {
  RequireRank("weight", weight, 2);
  if (x.empty()) Refuse("x is a scalar, expected [.., K]");
  RequireChannels(x, weight, 1);
  return RowsOf(x, weight[0]);
}

Symbols RowProduct::Names(Symbols x, const Shape&, const Shape&) const {
  x.back() = "";
  return x;
}

GemmArguments RowProduct::Arguments(const Tensors& t) {
  return {t.rows(), t.y_shape.back(), t.x_shape.back(),  t.x_data,  t.weight_data,
          t.y_data, t.x_pitch,        t.weight_shape[1], t.y_pitch, t.epilogue};
}

}  // namespace onnxbolt
