// Programmatic dependent launch, for kernels of every architecture: on sm_90 and later a kernel's
// blocks may start while the kernel before it ends, so that their launch costs no time of its own.
// Elsewhere these are plain launches.
//
// Before WaitForPredecessors a kernel may set up its shared memory and read what is constant for
// the session, as weights and epilogue vectors are. Everything else that it reads or writes comes
// after the wait of the thread that does it, or after loads of a thread that waited. Some thread of
// every block waits, and the wait is for the complete end of the kernels before: hence for that of
// all before them, too. A neighbour that knows nothing of this (ONNX Runtime's kernels) triggers no
// early launch when it comes before, and is launched without the attribute, hence after our end,
// when it comes behind.
#pragma once
#include "runtime/instance.h"

namespace onnxbolt {

// The next kernel of the stream may start its blocks from here on.
__device__ inline void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before are complete and their writes visible; at once where none was
// overlapped.
__device__ inline void WaitForPredecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kernel<<<grid, block, shared_memory, stream>>>(params) of a kernel that calls both functions;
// `dependent`: its architecture has dependent launches; `cluster`: how many blocks of the grid's x
// are a thread block cluster (1 where the architecture has none).
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
