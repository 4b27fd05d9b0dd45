#include "runtime/device.h"

#include <cuda_runtime_api.h>

#include "runtime/declarations.h"
#include "runtime/kernel_table.h"
#include "runtime/manifest.h"

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

// True if a GPU with this compute capability and so much shared memory for a block runs all kernels
// of an architecture.
bool Runs(int gpu, int shared_memory, const HeldArch& arch) {
  const int least = arch.compute_capability;
  const bool later = !arch.alone && least / 10 == gpu / 10 && least < gpu;
  return (least == gpu || later) && LargestSharedMemory(arch.number) <= shared_memory;
}

}  // namespace

std::string ArchName(int number) {
  for (size_t i = 0; i < kManifest.arch_count; ++i) {
    if (kManifest.archs[i].number == number) return kManifest.archs[i].name;
  }
  for (const KnownArch& known : kKnownArchs) {
    if (known.number == number) return known.name;
  }
  return "sm_" + std::to_string(number);
}

Selection SelectArch(int ordinal) {
  if (std::string reason = WhyUnusable(ordinal); !reason.empty()) return {0, std::move(reason)};
  const int sm = 10 * Attribute(cudaDevAttrComputeCapabilityMajor, ordinal) +
                 Attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  const int shared_memory = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  std::string held;
  for (size_t i = 0; i < kManifest.arch_count; ++i) {
    const HeldArch& arch = kManifest.archs[i];
    if (Runs(sm, shared_memory, arch)) return {arch.number, ""};
    held += std::string(held.empty() ? "" : ", ") + arch.name;
  }
  return {0, "GPU " + std::to_string(ordinal) + " is " + ArchName(sm) +
                 " and the library holds kernels for " + held +
                 ": run onnxbolt optimize with --arch " + ArchName(sm)};
}

}  // namespace onnxbolt
