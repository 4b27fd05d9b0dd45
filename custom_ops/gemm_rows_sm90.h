// GEMM for sm_90a where TMA cannot read the rows of A, since their pitch is no multiple of 16
// bytes: a chain of one layer, whose loader does without (chain/rows.h). Rows of B are multiples of
// 16 bytes; what is behind their k values is not read.
#pragma once
#include "b2b_gemm_sm90.h"

namespace onnxbolt {

// See GemmArguments.
template <class Config, class ElementType, class OutputType, class ChainType>
struct GemmRowsSm90 : B2bGemmSm90<Config, ElementType, OutputType, ChainType> {
  using Chain = B2bGemmSm90<Config, ElementType, OutputType, ChainType>;

  static const char* can_implement(const void* arguments) {
    const ChainArguments chain = OneLayer(*static_cast<const GemmArguments*>(arguments));
    return Chain::can_implement(&chain);
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const ChainArguments chain = OneLayer(*static_cast<const GemmArguments*>(arguments));
    return Chain::run(&chain, launch);
  }

 private:
  static ChainArguments OneLayer(const GemmArguments& gemm) {
    ChainArguments chain{};
    chain.m = gemm.m, chain.k = gemm.k, chain.layers = 1, chain.n[0] = gemm.n;
    chain.a = gemm.a, chain.weights[0] = gemm.b, chain.d = gemm.d;
    chain.lda = gemm.lda, chain.ldw = gemm.ldb, chain.ldd = gemm.ldd;
    chain.epilogue[0] = gemm.epilogue;
    return chain;
  }
};

}  // namespace onnxbolt
