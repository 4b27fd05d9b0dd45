// FusedConv of several layers: a convolution, and 1x1 convolutions behind it.
#include <cstring>

#include "ops/conv_chain/arguments.h"
#include "ops/shared/convolution.h"
#include "ops/shared/layers.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// True if the op's kernels take products of rows: those that store the first layer's result, or
// have tensors in it.
bool TakesRows(const Op& op) {
  const char *tensor = std::strchr(op.operands, 't'), *weight = std::strrchr(op.operands, 'w');
  return op.stores || (tensor && weight && tensor < weight);
}

// True if pixels are rows of a product as they lie.
bool IsProduct(const ConvArguments& conv) {
  return conv.r == 1 && conv.s == 1 && conv.p == conv.h && conv.q == conv.w && conv.pad_top == 0 &&
         conv.pad_left == 0 && conv.groups == 1;
}

class ConvChain : public Convolution {
 public:
  ConvChain(const Op& op, const Attributes& attributes)
      : Convolution(op, attributes, 4), params_(attributes.Floats("epilogue_params")) {}

  // The first convolution's shape with the last one's channels.
  Shape Weight(const Shape& first, const Shape& last) const override {
    RequireRank("weight", first, 4);
    RequireRank("the last weight", last, 4);
    Shape weight = first;
    weight[0] = last[0];
    return weight;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    ConvChainArguments arguments{Arguments(t), ReadLayers(op_, t, params_, true)};
    arguments.conv.k = AsInt(arguments.chain.n[0]);
    arguments.conv.filter = arguments.chain.weights[0];
    arguments.conv.epilogue = arguments.chain.epilogue[0];
    if (!TakesRows(op_)) return run(&arguments);
    if (!IsProduct(arguments.conv))
      Refuse(
          "only a 1x1 convolution of every pixel stores its result, or has residuals, before the next");
    return run(&arguments.chain);
  }

 private:
  const std::vector<float> params_;
};

const RegisteredKind<ConvChain> kConvChain("conv_chain", Cut::kImages, Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
