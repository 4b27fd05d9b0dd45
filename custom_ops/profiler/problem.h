// One problem on the device: random operands, as many sets of them as exceed the L2 cache, and the
// reference's answer.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/attention/arguments.h"
#include "ops/conv_chain/arguments.h"
#include "ops/gemm/arguments.h"
#include "ops/norm/arguments.h"
#include "ops/quantized/arguments.h"
#include "profiler/steps.h"
#include "runtime/kernel.h"

namespace onnxbolt {
namespace profiler {

using Failure = std::runtime_error;  // the problem's or the device's, never a candidate's

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Failure(std::string(what) + ": " + cudaGetErrorString(error));
}

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) {
    void* data = nullptr;
    if (bytes) Check(cudaMalloc(&data, bytes), "cudaMalloc");
    data_.reset(data);
  }
  void* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { cudaFree(data); }
  };
  std::unique_ptr<void, Free> data_;
};

// One operand in every set: a set's values begin `stride` bytes behind those of the set before.
struct Operand {
  Buffer buffer;
  size_t elements = 0, stride = 0;

  void* at(int set) const {
    return buffer.get() ? static_cast<char*>(buffer.get()) + set * stride : nullptr;
  }
};

// One step of a chain for the reference, which decides at run time what kernels decide at compile
// time.
struct Step {
  int code;  // its place in steps.h's table
  OperandKind kind;
  int operand, param;  // its vector or tensor and its first parameter, among those of its layer
  float error;  // the error of a kernel's implementation, in parts of its argument and result, of 1
                // at the least

  __host__ __device__ bool gates() const { return code == kGate || code == kGateBias; }
};

constexpr int kMaxSteps = 16;

struct Chain {
  int size = 0, vectors = 0, tensors = 0,
      first_param = 0;   // the last one among the parameters of all layers
  bool gated = false;    // true if the filter has two rows for each column, 8 of each in turns
  bool rotated = false;  // true if pairs of neighbouring columns are rotated
  float zero = 0;        // the zero point of x, which is subtracted from its codes
  int added = 0;         // the type of a tensor of values that is added beside codes, else 0
  int stored = 0;        // that of values that are written in front of the last step, else 0
  Step steps[kMaxSteps];
  float accumulation;        // error of the product's sums in parts of the sum of magnitudes
  float relative, absolute;  // error of an approximate activation at its end
};

// The rounding errors that an answer's limits follow from, besides those of epilogues
// (onnxbolt/tune/acceptance.py has them from verification).
struct Limits {
  float rounding;         // relative error of a step
  float floor;            // magnitude below which rounding errors get no smaller
  float mean;             // error of a mean's sum, or a score's, in parts of the sum of magnitudes
  float output, element;  // relative errors of rounding to these types
};

constexpr int kMaxProducts =
    8;  // products of a problem; each of its kernels takes at most kMaxLayers of them

// The chains of a problem's layers, one behind each product.
struct Layers {
  int count = 1;
  bool stores = false;  // true if the first one's result is an output, too
  bool means = false;   // true if the output is the mean over each image, [n, k]
  Chain chains[kMaxProducts];

  // True if a kernel for several layers takes products of rows: one that stores a layer's result,
  // or has tensors in front of a further layer.
  bool take_rows(int first, int last) const {
    return stores || std::any_of(chains + first, chains + last,
                                 [](const Chain& chain) { return chain.tensors > 0; });
  }
};

Layers ParseLayers(
    const char* epilogue);  // "Bias,Add,Relu", or of two layers "Bias,Relu,Gemm,Bias"

// A problem as the caller describes it. A GEMM is a 1x1 convolution over an image of m x 1 pixels,
// and so is each layer behind the first.
struct Description {
  bool is_gemm;
  int element, output;  // ONNX element types
  Layers layers;
  ConvArguments conv;  // the first layer's extents, windows and pitches; no pointers
  int columns[kMaxProducts];
  float params[kMaxParams];  // the parameters of all layers
  Limits limits;
  RotationArguments rotation;  // the only layer has it; no pointer
  int batches = 1;             // a GEMM's, whose filters are equal

  // True if x are codes.
  bool of_codes() const {
    return layers.chains[0].size > 0 && layers.chains[0].steps[0].code == kDequantize;
  }
  float zero() const { return layers.chains[0].zero; }
  int64_t rows() const { return int64_t(conv.n) * conv.p * conv.q; }
  int64_t written_rows() const { return layers.means ? conv.n : rows(); }
  int last() const { return layers.count - 1; }
  bool both() const {
    return layers.stores && layers.count == 1;
  }  // y is written in both forms, of which the rows are what is stored
  ConvArguments layer(int index) const;
};

// A normalization as the caller describes it, with gamma and beta as its chain's vectors and the
// residual as the chain's tensor.
struct NormDescription {
  int element;  // ONNX element type
  Layers layers;
  NormArguments norm;  // extents; no pointers
  Limits limits;
};

// An attention as the caller describes it.
struct AttentionDescription {
  int element;  // ONNX element type
  Layers layers;
  AttentionArguments attention;  // extents, scale, kind of mask, band; no pointers and strides
  bool by_heads[3];              // true if q (k, v) is [batch, heads, positions, size]
  int mask_shape[4];             // each 1 or the size of batch, heads, queries, keys
  Limits limits;
};

// The arguments of a problem's kernels: chains are several layers.
union Arguments {
  GemmArguments gemm;
  QuantizedGemmArguments quantized_gemm;
  QuantizedConvArguments quantized_conv;
  NormArguments norm;
  AttentionArguments attention;
  ConvArguments conv;
  ChainArguments chain;
  ConvChainArguments conv_chain;
  Arguments() : conv_chain{} {}
};

// The reference's answer: values in fp32, not rounded to the type that they are stored in, and how
// far a kernel's may be from each before it rounds.
struct Answer {
  Buffer values, errors;
};

struct Distance {
  double relative_l2;  // infinite where a value is not finite
  double excess;       // the largest error of one value in parts of its limit
};

class Problem {
 public:
  virtual ~Problem() = default;
  virtual int sets() const = 0;
  virtual int last() const = 0;  // the index of the last layer
  // The arguments of a kernel for the layers from `first` to `last`, as the runtime passes them to
  // Kernel's functions.
  virtual Arguments arguments(int set, int first, int last) const = 0;
  // The first set's output, and what lies between layers, becomes NaN.
  virtual void poison(cudaStream_t stream) const = 0;
  virtual Distance error() const = 0;  // the worse of two outputs, of the first set
};

// The classes of output pixels by the taps that meet the image: the first pixel of each along
// height and width.
struct BorderClasses {
  std::vector<int> h = {0}, w = {0};

  int count() const { return static_cast<int>(h.size() * w.size()); }
};

// GEMMs or convolutions, one behind the other.
class Products : public Problem {
 public:
  Products(const Description& description, size_t l2_bytes);  // computes the reference's answer

  int sets() const override { return sets_; }
  int last() const override { return description_.last(); }
  Arguments arguments(int set, int first, int last) const override;
  void poison(cudaStream_t stream) const override;
  Distance error() const override;

 private:
  // One layer's operands and its result: of the last one y, of the others what kernels for fewer
  // layers leave for the next.
  struct LayerOperands {
    Operand filter, vectors[kMaxVectors], tensors[kMaxTensors], y, rotation;
  };

  size_t describe_operands();  // the bytes of a set
  void fill();
  void fill_codes();
  void fill_offsets();
  void clear_taps();
  void pad_filter();
  void repeat_filter();
  Answer compute_reference();
  Answer compute_layer(const ConvArguments& conv, const Chain& chain, const float* errors) const;
  EpilogueArguments epilogue(int layer, int set) const;
  ConvArguments conv(int layer, int set) const;
  OffsetArguments offsets(int set) const;
  ChainArguments chain(int set, int first, int last) const;
  int64_t padded_pitch() const {
    return static_cast<int64_t>(padded_filter_.elements / description_.columns[0]);
  }
  void* input(int layer, int set) const {
    return layer == 0 ? x_.at(set) : layers_[layer - 1].y.at(set);
  }

  Description description_;
  int sets_ = 1;
  Operand x_, padded_filter_, rows_;  // the latter: y with its channels last, beside NCHW
  LayerOperands layers_[kMaxProducts];
  Operand offsets_;  // for the zero point of x: int32 [classes, columns]
  Operand values_;   // the second output of products of codes
  BorderClasses classes_;
  Answer reference_;         // float [written rows, columns of the last layer]
  Answer stored_reference_;  // the answer of the first layer if its result is an output, of the
                             // NHWC layout, or of values beside codes
};

// A normalization of rows.
class Norm : public Problem {
 public:
  Norm(const NormDescription& description, size_t l2_bytes);  // computes the reference's answer

  int sets() const override { return sets_; }
  int last() const override { return 0; }
  Arguments arguments(int set, int first, int last) const override;
  void poison(cudaStream_t stream) const override;
  Distance error() const override;

 private:
  const Chain& chain() const { return description_.layers.chains[0]; }
  NormArguments norm(int set) const;

  NormDescription description_;
  int sets_ = 1;
  Operand x_, residual_, vectors_[kMaxVectors], y_, sum_;
  Answer reference_, sum_reference_;  // float [rows, columns]
};

// Attention, its operands dense.
class Attention : public Problem {
 public:
  // computes the reference's answer
  Attention(const AttentionDescription& description, size_t l2_bytes);

  int sets() const override { return sets_; }
  int last() const override { return 0; }
  Arguments arguments(int set, int first, int last) const override;
  void poison(cudaStream_t stream) const override;
  Distance error() const override;

 private:
  bool has_mask() const { return description_.attention.mask.kind != Masking::kNone; }
  size_t mask_elements() const;
  int mask_type() const;
  void fill_mask();
  AttentionArguments attention(int set) const;

  AttentionDescription description_;
  int sets_ = 1;
  Operand q_, k_, v_, mask_, y_;
  Answer reference_;  // float [batch, queries, heads, value size]
};

// An operand's memory in each set: whole lines, so that all sets are aligned alike.
Operand Describe(size_t elements, int type);
void Allocate(Operand& operand, int sets);
void Fill(Operand& operand, int type, int sets, uint32_t seed, float mean, float deviation);
Answer AnswerOf(size_t count);
// Sets of so many bytes that exceed the L2 cache together.
int SetsOf(size_t bytes, size_t l2_bytes);
void FillNormal(void* data, int element, size_t count, uint32_t seed, float mean, float deviation);
// `x_errors`: of x, float [rows, c]; nullptr where it is exact.
void ComputeReference(const ConvArguments& conv, int element, const Chain& chain, float rounding,
                      const float* x_errors, const Answer& answer);
// Computes the offsets of sums of codes for the zero point of x: int32 [classes, k].
void ComputeOffsets(const ConvArguments& conv, int element, float zero,
                    const BorderClasses& classes, void* offsets);
void ComputeMeans(const ConvArguments& conv, const Answer& values, float accumulation,
                  const Answer& means);  // the means of an output [n, p, q, k]
// `pixels`: what the results of a convolution that makes all phases are at their pixels.
void ComputePixels(const ConvArguments& conv, const Answer& rows, const Answer& pixels);
// `sum`: what is normalized, if kernels of the chain write it.
void ComputeNorm(const NormArguments& norm, int element, const Chain& chain, float rounding,
                 const Answer& y, const Answer* sum);
// `accumulation`: error of the sums of values, `score_error` of those of scores, each in parts of
// the sum of magnitudes.
void ComputeAttention(const AttentionArguments& attention, int element, float accumulation,
                      float score_error, const Answer& y);
void FillBooleans(bool* data, size_t count, bool most);  // one of sixteen is another
void RoundTo(void* data, int element, const float* from, size_t count);
Distance DistanceFrom(const Answer& reference, const void* y, int output, float unit, float floor,
                      size_t count);
size_t ElementSize(int type);

}  // namespace profiler
}  // namespace onnxbolt
