// One op type of the manifest as ORT sees it.
#pragma once
#include "runtime/manifest.h"
#include "runtime/ort_abi.h"

namespace onnxbolt {

// ORT keeps pointers to it for as long as a session that uses it lives.
struct FusedOp : OrtCustomOp {
  FusedOp(const Op& description, int ort_minor);

  const Op& op;
};

}  // namespace onnxbolt
