// The manifest, which is generated for each model (templates/manifest.cc.j2): its op types, and the
// architectures that the library holds kernels for.
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
  // A letter for each input behind x and weight: 'v' a float32 vector [N], 't' a tensor of type
  // `element`, of an epilogue shaped as its layer's result, 'u' one of type `values`, 'w' the
  // weight of a further layer, 'r' the table of a rotation, 'y' the output as earlier nodes left
  // it, which this one writes into; of the op itself 't', 'i' (a vector for each image) of type
  // `element`, 'f' a float32 tensor, 'b' a tensor of booleans, 'n' one of indices, 'o' one of
  // int32, 's' a list of sizes in the host's memory.
  const char* operands;
  int nchw_input = 0;    // the type of x if it is NCHW while y is NHWC, else 0
  bool stores = false;   // true if the first layer's result is a second output
  bool to_nchw = false;  // true if a convolution writes y as NCHW
  bool means = false;    // true if a convolution's output is the mean over each image, [N, 1, 1, K]
  int indices = 0;       // the type of x, and of all inputs 'n', where x are indices, else 0
  int values = 0;        // the type of values that are added or stored beside codes, else 0
};

constexpr int TypeOfX(const Op& op) {
  return op.nchw_input ? op.nchw_input : op.indices ? op.indices : op.element;
}

// The types of an epilogue's tensors, and of a second output.
constexpr int TypeOfTensors(const Op& op) {
  bool values = false;
  for (size_t i = 0; op.operands[i]; ++i) values |= op.operands[i] == 'u';
  return values ? op.values : op.element;
}
constexpr int TypeOfStored(const Op& op) { return op.values ? op.values : op.element; }

constexpr bool HasWeight(const Op& op) { return op.first_operand > 1; }

// The input whose rows are the output's channels: the only weight, or the last layer's.
inline size_t LastWeight(const Op& op) {
  size_t last = 1;
  for (size_t i = 0; op.operands[i]; ++i) {
    if (op.operands[i] == 'w') last = op.first_operand + i;
  }
  return last;
}

constexpr size_t kNowhere = ~size_t{0};

// The input that becomes the output, with some of its channels written anew: the last one; kNowhere
// if there is none.
inline size_t WrittenInto(const Op& op) {
  size_t count = 0;
  while (op.operands[count]) ++count;
  return count && op.operands[count - 1] == 'y' ? op.first_operand + count - 1 : kNowhere;
}

// An architecture that the library holds kernels for.
struct HeldArch {
  int number;              // its number in configurations, e.g. 90
  const char* name;        // "sm_90a"
  int compute_capability;  // the least compute capability that runs its code, as 10 major + minor
  bool alone;              // true if no later minor version runs its code
};

struct Manifest {
  const Op* ops;
  size_t op_count;
  const HeldArch* archs;  // a GPU takes the first that it runs
  size_t arch_count;
  const char* json;  // {"format", "digest", "archs", "ops"}
};

extern const Manifest kManifest;

}  // namespace onnxbolt
