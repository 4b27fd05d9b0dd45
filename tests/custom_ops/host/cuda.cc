// The calls of the CUDA runtime that the library's host side makes, answered from one struct that a
// test fills in.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Machine {
  int error, driver, runtime, count, major, minor, shared_memory;
} machine = {cudaSuccess, 13000, 13000, 1, 8, 0, 166912};

std::atomic<int64_t> copies{0};

}  // namespace

EXPORT int64_t host_copies() { return copies; }
EXPORT void host_set_machine(const Machine* other) { machine = *other; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine.count;
  return static_cast<cudaError_t>(machine.error);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = machine.driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = machine.runtime, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the test's"; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = machine.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = machine.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = machine.shared_memory;
      break;
    default:
      *value = 4;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  ++copies;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
