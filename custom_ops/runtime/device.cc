#include "runtime/device.h"

#include <cuda_runtime_api.h>

#include "runtime/kernel_table.h"

namespace onnxbolt {
namespace {

std::string CudaVersion(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Empty where `ordinal` is a device that this build's CUDA runtime can use.
std::string WhyUnusable(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0 || error == cudaErrorNoDevice) return "no NVIDIA GPU or driver is visible";
    if (error == cudaErrorInsufficientDriver) {
      return "the NVIDIA driver supports CUDA " + CudaVersion(driver) +
             " and the library needs CUDA " + CudaVersion(runtime) + ": update the driver";
    }
    return std::string("CUDA does not start: ") + cudaGetErrorString(error);
  }
  if (count == 0) return "no NVIDIA GPU or driver is visible";
  if (ordinal < 0 || ordinal >= count)
    return "there is no GPU " + std::to_string(ordinal) + ", " + std::to_string(count) +
           " are visible";
  return "";
}

int Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  cudaDeviceGetAttribute(&value, attribute, ordinal);
  return value;
}

// True if no other GPU than the architecture's own runs its code.
bool IsAlone(int arch) {
  for (const ArchFacts& known : kKnownArchs) {
    if (known.number == arch) return known.alone;
  }
  return true;
}

bool Runs(int sm, int arch, int shared_memory) {
  if (arch != sm && (IsAlone(arch) || arch / 10 != sm / 10 || arch > sm)) return false;
  return LargestSharedMemory(arch) <= shared_memory;
}

}  // namespace

Selection SelectArch(int ordinal) {
  if (std::string reason = WhyUnusable(ordinal); !reason.empty()) return {0, std::move(reason)};
  const int sm = 10 * Attribute(cudaDevAttrComputeCapabilityMajor, ordinal) +
                 Attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  const int shared_memory = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  std::string held;
  for (size_t i = 0; i < kManifest.arch_count; ++i) {  // descending, so the nearest comes first
    const int arch = kManifest.archs[i];
    if (Runs(sm, arch, shared_memory)) return {arch, ""};
    held += (held.empty() ? "" : ", ") + ArchName(arch);
  }
  return {0, "GPU " + std::to_string(ordinal) + " is " + ArchName(sm) +
                 " and the library holds kernels for " + held +
                 ": run onnxbolt optimize with --arch " + ArchName(sm)};
}

}  // namespace onnxbolt
