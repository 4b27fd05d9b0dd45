#include "runtime/fused_kernel.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "runtime/device.h"
#include "runtime/elements.h"
#include "runtime/kernel_table.h"

namespace onnxbolt {
namespace {

using ort::Check;
using ort::Shape;
using ort::Succeeds;
using ort::ToString;

class KernelAttributes : public Attributes {
 public:
  explicit KernelAttributes(const OrtKernelInfo* info) : info_(info) {}

  Shape Ints(const char* name) const override {
    return Array<int64_t>(ort::KernelInfoGetInts, name);
  }
  std::vector<float> Floats(const char* name) const override {
    return Array<float>(ort::KernelInfoGetFloats, name);
  }

  int64_t Int(const char* name, int64_t otherwise) const override {
    int64_t value = 0;
    return Succeeds(ort::KernelInfoGetInt(info_, name, &value)) ? value : otherwise;
  }

  float Float(const char* name, float otherwise) const override {
    float value = 0;
    return Succeeds(ort::KernelInfoGetFloat(info_, name, &value)) ? value : otherwise;
  }

 private:
  template <class Element, class Get>
  std::vector<Element> Array(const Get& get, const char* name) const {
    size_t count = 0;
    if (!Succeeds(get(info_, name, static_cast<Element*>(nullptr), &count))) return {};
    std::vector<Element> values(count);
    Check(get(info_, name, values.data(), &count));
    return values;
  }

  const OrtKernelInfo* info_;
};

std::string Tile(const int64_t* shape) {
  return std::to_string(shape[0]) + "x" + std::to_string(shape[1]) + "x" + std::to_string(shape[2]);
}

std::string DescribeConfig(const Op& op, const int64_t* config) {
  return ArchName(static_cast<int>(config[kArch])) + " family " + std::to_string(config[kFamily]) +
         " " + TypeName(op.element) + "->" + TypeName(op.output) + " epilogue \"" + op.epilogue +
         "\" threadblock " + Tile(config + kTileM) + " warp " + Tile(config + kWarpM) + " stages " +
         std::to_string(config[kStages]) + " alignment " + std::to_string(config[kAlignA]) + "," +
         std::to_string(config[kAlignB]) + "," + std::to_string(config[kAlignC]);
}

void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw ort::Error(ort::kRuntimeException, std::string(what) + ": " + cudaGetErrorString(error));
}

// Makes a device current and the one before it again at the end: the thread is ORT's.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    CheckCuda(cudaGetDevice(&previous_), "cudaGetDevice");
    changed_ = device != previous_;
    if (changed_) CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

int DeviceOf(const OrtMemoryInfo* memory) {
  int device = 0;
  Check(ort::MemoryInfoGetId(memory, &device));
  return device;
}

}  // namespace

std::string DescribeNode(const Op& op, const OrtKernelInfo* info) {
  size_t size = 0;
  std::string name;
  Succeeds(ort::KernelInfoGetNodeName(info, nullptr, &size));
  name.resize(size);
  if (!Succeeds(ort::KernelInfoGetNodeName(info, name.data(), &size))) name.clear();
  return std::string(op.name) + " '" + name.c_str() + "'";
}

FusedKernel::FusedKernel(const Op& op, std::string where, const OrtKernelInfo* info)
    : op_(op), where_(std::move(where)), kind_(FindKind(op.kind)) {
  const KernelAttributes attributes(info);
  if (const int64_t format = attributes.Int("format", 0); format != kNodeFormat) {
    throw ort::Error(ort::kInvalidArgument,
                     "node format " + std::to_string(format) + ", this library reads " +
                         std::to_string(kNodeFormat) + ": run onnxbolt optimize again");
  }
  placement_.emplace(attributes);
  operation_ = kind_.make(op, attributes);
  configs_ = attributes.Ints("configs");
  params_ = attributes.Floats("epilogue_params");
  if (configs_.empty() || configs_.size() % kConfigWidth != 0 || params_.size() > kMaxParams) {
    throw ort::Error(ort::kInvalidArgument, "attribute configs or epilogue_params is damaged");
  }
  OrtAllocator* allocator = nullptr;
  Check(ort::KernelInfoGetAllocator(info, ort::kDeviceMemory, &allocator));
  allocator_.reset(allocator);
  ChooseKernels();
}

void FusedKernel::ChooseKernels() {
  const OrtMemoryInfo* memory = nullptr;
  Check(ort::AllocatorGetInfo(allocator_.get(), &memory));
  const int device = DeviceOf(memory);
  const Selection selection = SelectArch(device);
  if (!selection.arch) throw ort::Error(ort::kRuntimeException, selection.reason);
  const DeviceScope scope(device);
  CheckCuda(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  for (const int64_t* row = configs_.data(); row != configs_.data() + configs_.size();
       row += kConfigWidth) {
    if (row[kArch] != selection.arch) continue;
    const Kernel* kernel = FindKernel(op_, row);
    if (!kernel) {
      throw ort::Error(ort::kNotImplemented, "the library has no kernel " +
                                                 DescribeConfig(op_, row) +
                                                 ". Run: onnxbolt build <model>");
    }
    if (const char* error = kernel->prepare())
      throw ort::Error(ort::kRuntimeException, DescribeConfig(op_, row) + ": " + error);
    rows_.push_back({row, kernel});
  }
  if (rows_.empty()) {
    throw ort::Error(ort::kNotImplemented,
                     "the node has no configuration for " + ArchName(selection.arch) +
                         ". Run: onnxbolt optimize with --arch " + ArchName(selection.arch));
  }
}

const FusedKernel::Row& FusedKernel::RowFor(int64_t m) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [m](const Row& r) {
    return r.config[kMinM] <= m && m <= r.config[kMaxM];
  });
  if (row == rows_.end())
    throw ort::Error(ort::kNotImplemented, "no configuration serves m = " + std::to_string(m));
  return *row;
}

std::string FusedKernel::Describe(const Tensors& tensors) const {
  return DescribeConfig(op_, RowFor(tensors.rows()).config) + ", x " +
         ToString(ort::ShapeOf(tensors.x));
}

const char* FusedKernel::LaunchRow(OrtKernelContext* context, const Tensors& tensors,
                                   const void* arguments) const {
  const Row& row = RowFor(tensors.rows());
  if (const char* refusal = row.kernel->can_implement(arguments)) return refusal;
  const OrtMemoryInfo* memory = nullptr;
  Check(ort::GetTensorMemoryInfo(tensors.x, &memory));
  const DeviceScope scope(DeviceOf(memory));
  void* stream = nullptr;
  Check(ort::GetGpuComputeStream(context, &stream));
  const Scratch scratch(context, allocator_.get(),
                        row.kernel->workspace_size(arguments, row.config));
  const char* error = row.kernel->run(
      arguments, Launch{scratch.data(), row.config, static_cast<cudaStream_t>(stream), sm_count_});
  if (error) throw ort::Error(ort::kRuntimeException, Describe(tensors) + ": " + error);
  return nullptr;
}

}  // namespace onnxbolt
