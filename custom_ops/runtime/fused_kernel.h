// One fused node of a session: its kernels, chosen and prepared at creation, launched by Compute.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/buffers.h"
#include "runtime/kernel.h"
#include "runtime/manifest.h"
#include "runtime/operation.h"
#include "runtime/ort_objects.h"
#include "runtime/placement.h"

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
  void ChooseKernels();
  const Row& RowFor(int64_t m) const;
  std::string Describe(const Tensors& tensors) const;

  // Launches, or returns why the kernel does not take such arguments.
  const char* LaunchRow(OrtKernelContext* context, const Tensors& tensors,
                        const void* arguments) const;

  // fused_launch.cc: from a node's inputs to launches
  void PlaceOutput(Tensors* tensors) const;
  EpilogueArguments ReadEpilogue(Buffers& buffers, const ort::Shape& y) const;
  void RunInSlices(OrtKernelContext* context, Tensors whole) const;
  Tensors Slice(const Tensors& whole, int64_t first, int64_t count) const;
  const char* RunSlice(OrtKernelContext* context, const Tensors& tensors) const;

  const Op& op_;
  std::string where_;  // op type and node name, for messages
  const OpKind& kind_;
  std::optional<Placement> placement_;
  std::unique_ptr<const Operation> operation_;
  ort::OwnedAllocator allocator_;
  int sm_count_ = 0;
  ort::Shape configs_;     // all rows of the node, end to end
  std::vector<Row> rows_;  // those of the device's architecture
  std::vector<float> params_;
};

// "FusedGemm_Bias_f16 'node name'"
std::string DescribeNode(const Op& op, const OrtKernelInfo* info);

}  // namespace onnxbolt
