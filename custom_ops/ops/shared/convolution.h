// Parts that all kinds of convolution share: shapes, and the arguments of the first convolution.
#pragma once
#include "ops/conv/arguments.h"
#include "ops/shared/window.h"
#include "runtime/operation.h"

namespace onnxbolt {

// A convolution in NHWC, in NLC where `rank` is 3, in NDHWC where it is 5.
class Convolution : public Operation {
 public:
  ort::Shape Output(const ort::Shape& x, const ort::Shape& weight) const override;
  Symbols Names(Symbols x, const ort::Shape& x_shape, const ort::Shape& weight) const override;

 protected:
  Convolution(const Op& op, const Attributes& attributes, size_t rank);

  ConvArguments Arguments(const Tensors& tensors) const;

  const Op& op_;

 private:
  Window Over(const ort::Shape& x, const ort::Shape& weight) const;

  const Window window_;
  const int64_t groups_;
  const size_t rank_;
};

}  // namespace onnxbolt
