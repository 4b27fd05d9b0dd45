// Shapes of fused nodes while ORT builds the graph: buffers are planned and reused only for tensors
// whose shape is known.
#pragma once
#include "runtime/manifest.h"
#include "runtime/ort_abi.h"

namespace onnxbolt {

// Sets output 0's type, and its shape if the inputs' known and symbolic dimensions determine it.
// Throws ort::Error.
void InferShape(const Op& op, OrtShapeInferContext* context);

}  // namespace onnxbolt
