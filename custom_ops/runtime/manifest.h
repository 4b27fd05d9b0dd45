// What the generated manifest (templates/manifest.cc.j2) tells the rest of the library
// about its model.
#pragma once
#include <cstddef>
#include <cstring>

namespace onnxbolt {

// One op type of domain com.onnxbolt. Types are ONNX element types.
struct Op {
  const char* name;
  const char* kind;      // custom_ops/ops/
  size_t first_operand;  // the first input behind x and the weight, if there is one
  int element, output;
  const char* epilogue;  // key of its kernels, e.g. "Bias,Add,Relu"
  const char* operands;  // what the inputs behind x and weight are: 'v' a float32 vector [N], 't' a
                         // tensor of its layer's result's shape, 'w' the weight of a further layer,
                         // 'y' the output as earlier nodes left it: this one writes into it
  int planes = 0;        // where x is NCHW and y NHWC, the type of x; else 0
  bool stores = false;   // whether the first layer's result is a second output
  bool to_nchw = false;  // whether a convolution writes y as NCHW
  bool means = false;    // whether a convolution's output is the mean over each image, [N, 1, 1, K]
};

constexpr bool HasWeight(const Op& op) { return op.first_operand > 1; }

// The input whose rows are the output's channels: the only weight, or the last of a chain.
inline size_t LastWeight(const Op& op) {
  size_t last = 1;
  for (size_t i = 0; op.operands[i]; ++i) {
    if (op.operands[i] == 'w') last = op.first_operand + i;
  }
  return last;
}

constexpr size_t kNowhere = ~size_t{0};

// The input that becomes the output, with some of its channels written anew; kNowhere where there
// is none. It is the last one.
inline size_t WrittenInto(const Op& op) {
  size_t count = 0;
  while (op.operands[count]) ++count;
  return count && op.operands[count - 1] == 'y' ? op.first_operand + count - 1 : kNowhere;
}

// An architecture that the library holds kernels for.
struct HeldArch {
  int number;              // in configurations, e.g. 90
  const char* name;        // "sm_90a"
  int compute_capability;  // the least that runs its code, as 10 major + minor
  bool alone;              // true if no later minor version runs its code
};

struct Manifest {
  const Op* ops;
  size_t op_count;
  const HeldArch* archs;  // in the order in which a GPU takes the first that it runs
  size_t arch_count;
  const char* json;  // {"format", "digest", "archs", "ops"}
};

extern const Manifest kManifest;

}  // namespace onnxbolt
