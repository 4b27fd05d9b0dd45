#include "runtime/buffers.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "runtime/shapes.h"

namespace onnxbolt {
namespace {

using ort::Check;

constexpr uintptr_t kAccess = 16;

bool IsAccessible(const void* data, int64_t bytes) {
  return bytes == 0 || reinterpret_cast<uintptr_t>(data) % kAccess == 0;
}

}  // namespace

void CopyTensor(const OrtKernelContext* context, void* to, const void* from, int64_t bytes) {
  void* stream = nullptr;
  Check(ort::GetGpuComputeStream(context, &stream));
  const cudaError_t error =
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) throw ort::Error(ort::kRuntimeException, cudaGetErrorString(error));
}

Scratch::Scratch(const OrtKernelContext* context, OrtAllocator* allocator, size_t bytes)
    : allocator_(allocator) {
  if (bytes == 0) return;
  const OrtMemoryInfo* memory = nullptr;
  Check(ort::AllocatorGetInfo(allocator, &memory));
  Check(ort::GetScratchBuffer(context, memory, bytes, &data_));
}

Scratch::~Scratch() {
  if (data_) ort::Succeeds(ort::AllocatorFree(allocator_, data_));
}

const OrtValue* Buffers::Input(size_t index) const {
  const OrtValue* value = nullptr;
  Check(ort::GetInput(context_, index, &value));
  if (!value)
    throw ort::Error(ort::kInvalidArgument, "input " + std::to_string(index) + " is missing");
  return value;
}

const void* Buffers::Read(const OrtValue* value, int type) {
  void* const data = ort::DataOf(value);
  const int64_t bytes = Elements(ort::ShapeOf(value)) * BytesOf(type);
  return IsAccessible(data, bytes) ? data : StandInFor(data, bytes, false);
}

void* Buffers::Write(size_t output, const ort::Shape& shape, int type) {
  OrtValue* value = nullptr;
  Check(ort::GetOutput(context_, output, shape.data(), shape.size(), &value));
  void* const data = ort::DataOf(value);
  const int64_t bytes = Elements(shape) * BytesOf(type);
  return IsAccessible(data, bytes) ? data : StandInFor(data, bytes, true);
}

void* Buffers::StandInFor(void* original, int64_t bytes, bool written) {
  const auto found = std::find_if(stand_ins_.begin(), stand_ins_.end(), [&](const StandIn& other) {
    return other.original == original && other.bytes == bytes && other.written == written;
  });
  if (found != stand_ins_.end()) return found->copy;
  void* const copy = scratch_.emplace_back(context_, allocator_, bytes).data();
  if (!written) Copy(copy, original, bytes);
  stand_ins_.push_back({original, copy, bytes, written});
  return copy;
}

void Buffers::Finish() const {
  for (const StandIn& each : stand_ins_) {
    if (each.written) Copy(each.original, each.copy, each.bytes);
  }
}

}  // namespace onnxbolt
