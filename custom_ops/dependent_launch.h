// Programmatic dependent launch, for kernels of every architecture: on sm_90 and later a kernel's blocks may start while the kernel
// before it ends, so that their launch costs no time of its own. Elsewhere these are plain launches.
//
// What a kernel reads before WaitForPredecessors must be constant for the session: weights and epilogue vectors are. The wait is for
// the complete end of all kernels before, who waited themselves. Kernels that know nothing of this neither start early nor let others.
#pragma once
#include "instance.h"

namespace onnxbolt {

// The next kernel of the stream may start its blocks from here on.
__device__ inline void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before are complete and their writes visible.
__device__ inline void WaitForPredecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kernel<<<grid, block, shared_memory, stream>>>(params) of a kernel that calls both functions; `arch` is its configuration's, and
// `cluster` how many blocks of the grid's x are a thread block cluster (1 below sm_90, which has none).
template <class Params>
const char* LaunchDependent(void (*kernel)(Params), dim3 grid, dim3 block, cudaStream_t stream, const Params& params, int arch,
                            int shared_memory = 0, int cluster = 1) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_memory;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = arch < 90 ? 0 : cluster > 1 ? 2 : 1;
  return ErrorText(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace onnxbolt
