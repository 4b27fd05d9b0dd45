// What a generated translation unit and the runtime share: arguments of a launch, and the list of
// compiled kernels.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/declarations.h"

namespace onnxbolt {

// Operands of the epilogue's steps, each list in the order of the steps that use it.
struct EpilogueArguments {
  const float* vectors[kMaxVectors] = {};  // one value per output channel
  const void* tensors[kMaxTensors] = {};   // shaped like the output, in the kernel's element type
  int64_t tensor_pitch[kMaxTensors] = {};  // elements from one row (pixel) to the next
  float params[kMaxParams] = {};
};

// D[m, n] = epilogue(A[m, k] B[n, k]^T). Pitches are elements from one row to the next; a channel
// offset is part of the pointer.
struct GemmArguments {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t lda, ldb, ldd;
  EpilogueArguments epilogue;
};

// Several GEMMs in one kernel: D = epilogue_l(.. epilogue_0(A W_0^T) .. W_l^T). Layer i has weights
// [n[i], n[i - 1]], densely; n[-1] is k. The layers' params follow one another in the first
// layer's, tensors are one layer's: the last one's, or the first one's of two.
struct ChainArguments {
  int64_t m, k;
  int layers;
  int64_t n[kMaxLayers];
  const void *a, *weights[kMaxLayers];
  void* d;
  int64_t lda, ldd;
  EpilogueArguments epilogue[kMaxLayers];
  int64_t ldw = 0;  // where rows of the first layer's weights are padded, their pitch; else 0
  void* stored = nullptr;  // where the first layer's result is an output, too, it [m, n[0]],
                           // densely; tensors are that layer's then

  constexpr int64_t depth(int layer) const { return layer == 0 ? k : n[layer - 1]; }
  constexpr int64_t weight_pitch(int layer) const {
    return layer == 0 && ldw > 0 ? ldw : depth(layer);
  }
};

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c]), cross-correlation. A pitch is elements
// from one pixel to the next.
struct ConvArguments {
  int n, h, w, c, k, r, s, p, q;
  int pad_top, pad_left, pad_bottom, pad_right, stride_h, stride_w, dilation_h, dilation_w, groups;
  const void *x, *filter;
  void* y;
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
  int x_planes = 0;  // where x lies as [n, c, h, w], its ONNX element type: the first layer's,
                     // which may be fp32; else 0
  int y_planes = 0;  // 1 where y is to lie as [n, k, p, q], with any k; it has no pitch then
  void* stored = nullptr;  // where y is to lie in both forms: the one with its channels last,
                           // densely, in the element type of x;
  int padding = 0;         // the other one is without so many channels at the end

  constexpr void* rows() const { return stored ? stored : y; }  // what is to have its channels last
  constexpr int64_t row_pitch() const { return stored ? k : y_pitch; }
};

// A convolution and 1x1 convolutions behind it, in one kernel: of `conv` x, the filter, all
// extents, k and the epilogue are the first layer's. `chain` has all layers, the first one as a
// product of n p q rows and k = r s c. Both have the output: y, which is d, with its pitch.
struct ConvChainArguments {
  ConvArguments conv;
  ChainArguments chain;
};

enum class PoolKind : int { kMax = 0, kAverage = 1 };

// y[n, p, q, c] = max or mean over windows of x[n, h, w, c]; a global pooling is a window of the
// whole image.
struct PoolArguments {
  PoolKind kind;
  int n, h, w, c, p, q;
  int window_h, window_w, pad_top, pad_left, pad_bottom, pad_right, stride_h, stride_w, dilation_h,
      dilation_w;
  int count_include_pad;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
};

// y[n, p, q, c] from the pixels of x[n, h, w, c] that lie where `coordinates` says (ONNX, Resize).
// A scale is output to input.
struct ResizeArguments {
  ResizeMode mode;
  Coordinates coordinates;
  Rounding rounding;
  int n, h, w, c, p, q;
  float scale_h, scale_w;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  // of cubic: Keys' parameter, and whether pixels outside of the image have no weight (else they
  // are as those at its border)
  float cubic_coeff_a = -0.75f;
  bool exclude_outside = false;
};

// x [n, channels, pixels] to y [n, pixels, stored] with zeros in the channels that are stored
// beyond `channels`, or back without them.
struct LayoutArguments {
  int to_last;  // 1: to channels last, 0: to channels first
  int n, channels, stored, pixels;
  const void* x;
  void* y;
};

// y = epilogue(x) on rows of channels; a pitch is elements from one row (pixel) to the next.
struct ElementwiseArguments {
  int64_t rows;
  int channels;
  const void* x;
  void* y;
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
};

// y[n, p, c] = x[n, p, c] gate(excite[c, s] squeeze(squeeze[s, c] mean over p of x[n, p, c] + b1) +
// b2), with an activation behind each product. A pitch is elements from one pixel to the next.
struct SqueezeExciteArguments {
  int n, pixels, channels, squeezed;
  const void *x, *squeeze, *excite;  // weights [squeezed, channels] and [channels, squeezed]
  const float *squeeze_bias, *excite_bias;
  void* y;
  int64_t x_pitch, y_pitch;
  float step_params[kMaxParams];  // of both activations, in their order
};

struct Launch {
  void* workspace;
  const int64_t*
      config;  // the node's row: run-time choices (swizzle on 3.x, split_k) are read from it
  cudaStream_t stream;
  int sm_count;
};

// One compiled instance. Every function returns nullptr when all is well, else a static text that
// says what is wrong.
struct Kernel {
  const char* epilogue;  // the chain's key, e.g. "Bias,Add,Relu"
  int element, output;   // ONNX element types of inputs and of the output
  int64_t config[kConfigWidth];
  int shared_memory;         // bytes of dynamic shared memory of one block
  const char* (*prepare)();  // once per device, at kernel creation
  const char* (*can_implement)(const void* arguments);  // GemmArguments, ConvArguments, ..
  size_t (*workspace_size)(const void* arguments, const int64_t* config);
  const char* (*run)(const void* arguments, const Launch& launch);
  Kernel* next = nullptr;
};

// Generated units put their instances into this list before the library is used (static
// initialization; instance.h).
void RegisterKernel(Kernel* kernel);
const Kernel* FirstKernel();

}  // namespace onnxbolt
