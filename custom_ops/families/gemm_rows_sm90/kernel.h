// GEMM for sm_90a whose rows of A TMA cannot read, since their pitch is no multiple of 16 bytes.
//
// The kernel is that of several GEMMs (sm90/b2b/kernel.h) with one layer: its producer gathers rows
// with plain loads (sm90/b2b/rows.h), weights come by TMA.
//
// Constraints: fp16 or bf16; rows of B are multiples of 16 bytes (values behind the first k are not
// read); all weights fit in shared memory.
#pragma once
#include "ops/gemm/arguments.h"
#include "ops/gemm_chain/arguments.h"
#include "sm90/b2b/kernel.h"

namespace onnxbolt {

// See GemmArguments.
template <class Config, class ElementType, class OutputType, class ChainType>
struct GemmRowsSm90 : sm90::B2bGemm<Config, ElementType, OutputType, ChainType> {
  using Chain = sm90::B2bGemm<Config, ElementType, OutputType, ChainType>;

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
