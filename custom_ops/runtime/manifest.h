// What the generated manifest (templates/manifest.cc.j2) tells the rest of the library
// about its model.
#pragma once
#include <cstddef>
#include <cstring>

namespace onnxbolt {

enum class Kind {
  kConv,
  kConv1d,
  kGemm,
  kMaxPool,
  kAveragePool,
  kGlobalAveragePool,
  kToNhwc,
  kToNchw,
  kElementwise,
  kGemmChain,
  kConvChain,
  kSqueezeExcite,
  kResize
};

constexpr bool IsConv(Kind kind) {
  return kind == Kind::kConv || kind == Kind::kConv1d || kind == Kind::kConvChain;
}
constexpr bool IsChain(Kind kind) { return kind == Kind::kGemmChain || kind == Kind::kConvChain; }
constexpr bool IsLayout(Kind kind) { return kind == Kind::kToNhwc || kind == Kind::kToNchw; }
constexpr bool IsGemm(Kind kind) { return kind == Kind::kGemm || kind == Kind::kGemmChain; }
constexpr bool HasWeight(Kind kind) {
  return IsConv(kind) || IsGemm(kind) || kind == Kind::kSqueezeExcite;
}
constexpr size_t FirstOperand(Kind kind) { return HasWeight(kind) ? 2 : 1; }

// One op type of domain com.onnxbolt. Types are ONNX element types.
struct Op {
  const char* name;
  Kind kind;
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

// The input whose rows are the output's channels: the only weight, or the last of a chain.
inline size_t LastWeight(const Op& op) {
  size_t last = 1;
  for (size_t i = 0; op.operands[i]; ++i) {
    if (op.operands[i] == 'w') last = FirstOperand(op.kind) + i;
  }
  return last;
}

// Whether the kernels for several layers take products of rows as they lie, of convolutions, too:
// those that store the first layer's result, or have tensors in it.
inline bool TakesRows(const Op& op) {
  const char *tensor = std::strchr(op.operands, 't'), *weight = std::strrchr(op.operands, 'w');
  return op.stores || (tensor && weight && tensor < weight);
}

constexpr size_t kNowhere = ~size_t{0};

// The input that becomes the output, with some of its channels written anew; kNowhere where there
// is none. It is the last one.
inline size_t WrittenInto(const Op& op) {
  size_t count = 0;
  while (op.operands[count]) ++count;
  return count && op.operands[count - 1] == 'y' ? FirstOperand(op.kind) + count - 1 : kNowhere;
}

struct Manifest {
  const Op* ops;
  size_t op_count;
  const int* archs;  // descending; 90 means sm_90a
  size_t arch_count;
  const char* json;  // {"format", "digest", "archs", "ops"}
};

extern const Manifest kManifest;

}  // namespace onnxbolt
