// Two to four GEMMs in one kernel with mma.sync, for sm_75, sm_80 and later.
//
// The first product is CUTLASS 2.x's main loop. Each further product takes what the one before left
// in registers, rounded to its element type (mma/b2b/product.h); the last epilogue stores through
// shared memory.
//
// Constraints: fp16 or bf16; a block has all columns of its rows, hence few columns; weights behind
// the first layer have rows of multiples of 16 bytes.
#pragma once
#include "mma/b2b/kernel.h"
#include "ops/gemm_chain/arguments.h"

namespace onnxbolt {

// See ChainArguments and b2b_2x::Shape.
template <class Config, class ElementType, class OutputType, class... Chains>
struct B2bGemm2x
    : b2b_2x::Launcher<
          b2b_2x::Shape<b2b_2x::MatrixMainLoop, Config, ElementType, OutputType, Chains...>> {
  using Base = b2b_2x::Launcher<
      b2b_2x::Shape<b2b_2x::MatrixMainLoop, Config, ElementType, OutputType, Chains...>>;

  static const char* can_implement(const void* arguments) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    constexpr int kA = Config::at(kAlignA), kB = Config::at(kAlignB);
    if (chain.k % kA != 0 || chain.lda % kA != 0 || !IsAligned(chain.a, kA * sizeof(ElementType)))
      return "A, its pitch or k is not aligned to align_a elements";
    if (chain.k % kB != 0 || chain.weight_pitch(0) % kB != 0 ||
        !IsAligned(chain.weights[0], kB * sizeof(ElementType)))
      return "the first layer's weights, their pitch or k are not aligned to align_b elements";
    return Base::check(chain);
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& chain = *static_cast<const ChainArguments*>(arguments);
    return chain.m == 0 ? nullptr
                        : Base::launch(Base::First::describe(chain), chain, launch.stream);
  }
};

}  // namespace onnxbolt
