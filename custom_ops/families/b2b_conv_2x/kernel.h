// A convolution and 1x1 convolutions behind it in one kernel with mma.sync, for sm_75, sm_80 and
// later.
//
// The first convolution is CUTLASS 2.x's implicit GEMM (mma/implicit_gemm.h). Each further product
// takes what the one before left in registers, rounded to its element type (mma/b2b/product.h); the
// last epilogue stores through shared memory.
//
// Constraints: fp16 or bf16; no groups; all output channels of a pixel belong to one block, hence
// few channels; weights behind the first layer have rows of multiples of 16 bytes.
#pragma once
#include "mma/b2b/kernel.h"
#include "ops/conv_chain/arguments.h"

namespace onnxbolt {

// See ConvChainArguments and b2b_2x::Shape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bConv2x
    : b2b_2x::Launcher<
          b2b_2x::Shape<b2b_2x::ImageMainLoop, Config, ElementType, OutputType, Chains...>> {
  using Base = b2b_2x::Launcher<
      b2b_2x::Shape<b2b_2x::ImageMainLoop, Config, ElementType, OutputType, Chains...>>;

  static const char* can_implement(const void* arguments) {
    const auto& layers = *static_cast<const ConvChainArguments*>(arguments);
    if (layers.conv.groups != 1) return "a chain of convolutions has no groups";
    if (layers.chain.n[0] != layers.conv.k)
      return "the first layer has another number of channels than the convolution";
    if (const char* error = Base::First::Alone::can_implement(&layers.conv)) return error;
    return Base::check(layers.chain);
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& layers = *static_cast<const ConvChainArguments*>(arguments);
    return layers.chain.m == 0
               ? nullptr
               : Base::launch(Base::First::describe(layers.conv), layers.chain, launch.stream);
  }
};

}  // namespace onnxbolt
