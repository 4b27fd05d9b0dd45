// The inputs of ops of several layers: weights, and each layer's operands.
#pragma once
#include "ops/gemm_chain/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {

// All layers of a node as products of rows. `params` are those of all steps; with `is_conv` the
// weights behind the first one are those of 1x1 convolutions. Throws ort::Error where shapes do not
// fit.
ChainArguments ReadLayers(const Op& op, const Tensors& tensors, const std::vector<float>& params,
                          bool is_conv);

}  // namespace onnxbolt
