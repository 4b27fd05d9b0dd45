// Two to four GEMMs in one persistent kernel for sm_90a (Bolt, section 3.1.1), with the
// intermediate results in registers.
//
// TMA brings tiles of rows into rings. A consumer warpgroup multiplies 64 of them by the first
// layer's weights, applies the epilogue to the accumulators, converts them in place to the operand
// of the next product, and so on. The last layer ends as any tile does (sm90/epilogue.h).
//
// Constraints: fp16 or bf16; weights' rows are multiples of 16 bytes; all weights fit in shared
// memory, and a layer's accumulators in registers (sm90/b2b/shape.h).
#pragma once
#include "sm90/b2b/kernel.h"

namespace onnxbolt {

// See ChainArguments.
template <class Config, class Element, class Output, class... Chains>
using B2bGemmSm90 = sm90::B2bGemm<Config, Element, Output, Chains...>;

}  // namespace onnxbolt
