// Programmatic dependent launch, for kernels of every architecture: on sm_90 and later a kernel's
// blocks may start while the kernel before it ends, which hides the time of the launch. On other
// architectures these are plain launches.
//
// Before WaitForPredecessors a kernel may set up its shared memory and read data that is constant
// for the session, such as weights and epilogue vectors. All other reads and writes come after the
// wait of the thread that makes them, or after loads of a thread that waited. At least one thread
// of every block waits, for the complete end of the kernels before, hence of all kernels before
// them. Kernels that know nothing of this (ONNX Runtime's) are safe neighbours: before ours they
// trigger no early launch, and behind ours they are launched without the attribute, hence after our
// end.
#pragma once
#include "runtime/instance.h"

namespace onnxbolt {

// Lets the next kernel of the stream start its blocks.
__device__ inline void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before are complete and their writes visible; at once if none was
// overlapped.
__device__ inline void WaitForPredecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches kernel<<<grid, block, shared_memory, stream>>>(params), which calls both functions.
// `dependent`: its architecture has dependent launches; `cluster`: how many blocks of the grid's x
// are a thread block cluster (1 if the architecture has none).
template <class Params>
const char* LaunchDependent(void (*kernel)(Params), dim3 grid, dim3 block, cudaStream_t stream,
                            const Params& params, bool dependent, int shared_memory = 0,
                            int cluster = 1) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_memory;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return ErrorText(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace onnxbolt
