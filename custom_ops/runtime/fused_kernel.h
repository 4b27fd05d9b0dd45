// One fused node of a session: its kernels, chosen and prepared at creation, launched by Compute.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/buffers.h"
#include "runtime/geometry.h"
#include "runtime/kernel.h"
#include "runtime/manifest.h"
#include "runtime/ort_objects.h"

namespace onnxbolt {

// Immutable once it is made: ORT calls Compute from many threads at once.
class FusedKernel {
 public:
  // Reads the node's attributes, finds and prepares its kernels for the session's device; throws
  // ort::Error.
  FusedKernel(const Op& op, std::string where, const OrtKernelInfo* info);

  // Launches on ORT's stream. It neither synchronizes nor allocates (but for scratch memory of
  // ORT's arena), so CUDA graphs may capture it.
  void Compute(OrtKernelContext* context) const;

  const std::string& where() const { return where_; }

 private:
  struct Row {
    const int64_t* config;
    const Kernel* kernel;
  };
  struct Tensors {
    const OrtValue* x;
    Buffers* buffers;
    ort::Shape x_shape, weight_shape, y_shape;  // of x and y, a slice
    ort::Shape whole_y;
    int64_t first_row;  // of y, that a slice begins with
    const void *x_data, *weight_data;
    void *y_data,
        *stored_data;  // the latter where the op stores its first layer's result, else nullptr
    int64_t stored_channels;
    int64_t x_pitch;  // channels of the first input, of which those of x_shape are read
    int64_t y_pitch;  // channels of the output, of which the node writes those of y_shape
    EpilogueArguments epilogue;

    int64_t rows() const { return Elements(y_shape) / y_shape.back(); }
  };

  void ChooseKernels();
  const Row& RowFor(int64_t m) const;
  std::string Describe(const Tensors& tensors) const;
  int XType() const { return op_.planes ? op_.planes : op_.element; }

  // Launches, or returns why the kernel does not take such arguments.
  const char* LaunchRow(OrtKernelContext* context, const Tensors& tensors,
                        const void* arguments) const;

  // fused_arguments.cc: from a node's inputs to a launch
  void PlaceOutput(Tensors* tensors) const;
  EpilogueArguments ReadEpilogue(Buffers& buffers, const ort::Shape& y) const;
  ChainArguments ReadChain(const Tensors& tensors) const;
  ConvArguments ReadConv(const Tensors& tensors) const;
  void RunInSlices(OrtKernelContext* context, Tensors whole) const;
  Tensors Slice(const Tensors& whole, int64_t first, int64_t count) const;
  const char* Run(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunGemm(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunChain(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunConv(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunConvChain(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunPool(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunSqueezeExcite(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunLayout(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunResize(OrtKernelContext* context, const Tensors& tensors) const;
  const char* RunElementwise(OrtKernelContext* context, const Tensors& tensors) const;

  const Op& op_;
  std::string where_;  // op type and node name, for messages
  std::optional<Geometry> geometry_;
  ort::OwnedAllocator allocator_;
  int sm_count_ = 0;
  ort::Shape configs_;     // all rows of the node, end to end
  std::vector<Row> rows_;  // those of the device's architecture
  std::vector<float> params_;
};

// "FusedGemm_Bias_f16 'node name'"
std::string DescribeNode(const Op& op, const OrtKernelInfo* info);

}  // namespace onnxbolt
