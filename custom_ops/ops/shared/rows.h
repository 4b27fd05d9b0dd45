// Parts that all products of a matrix's rows share: shapes and arguments.
#pragma once
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {

// y[.., N] = epilogue(x[.., K] weight[fold N, K]^T).
class RowProduct : public Operation {
 public:
  ort::Shape Output(const ort::Shape& x, const ort::Shape& weight) const override;
  Symbols Names(Symbols x, const ort::Shape& x_shape, const ort::Shape& weight) const override;

 protected:
  // The arguments of a launch; zeros may stand behind the weight's K values.
  static GemmArguments Arguments(const Tensors& tensors);
};

}  // namespace onnxbolt
