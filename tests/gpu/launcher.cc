// C functions around the kernels of a test library: memory, lookup, and launches that wait and
// report.
#include <cuda_runtime_api.h>

#include <cstring>

#include "runtime/kernel.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const char* Text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// The kernel's workspace, filled with garbage: a kernel must not expect zeros. The filling is
// waited for, since the launches' streams do not wait for the default one.
class Workspace {
 public:
  Workspace(const onnxbolt::Kernel* kernel, const void* arguments, const int64_t* config) {
    const size_t bytes = kernel->workspace_size(arguments, config);
    if (bytes && cudaMalloc(&data_, bytes) == cudaSuccess) {
      cudaMemset(data_, 0xff, bytes);
      cudaDeviceSynchronize();
    }
  }
  ~Workspace() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

onnxbolt::Launch MakeLaunch(const Workspace& workspace, const int64_t* config,
                            cudaStream_t stream) {
  int device = 0, sm_count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  return {workspace.data(), config, stream, sm_count};
}

}  // namespace

EXPORT const char* device_allocate(void** pointer, size_t bytes) {
  return Text(cudaMalloc(pointer, bytes));
}
EXPORT const char* device_free(void* pointer) { return Text(cudaFree(pointer)); }
// Waited for: what comes from pageable memory may arrive after the call's end, and the launches'
// streams do not wait for the default one.
EXPORT const char* device_copy(void* to, const void* from, size_t bytes) {
  const char* error = Text(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  return error ? error : Text(cudaStreamSynchronize(cudaStreamLegacy));
}

EXPORT const onnxbolt::Kernel* find_kernel(const char* epilogue, int element, int output,
                                           const int64_t* config) {
  for (const onnxbolt::Kernel* kernel = onnxbolt::FirstKernel(); kernel; kernel = kernel->next) {
    if (!std::strcmp(kernel->epilogue, epilogue) && kernel->element == element &&
        kernel->output == output && !std::memcmp(kernel->config, config, sizeof kernel->config))
      return kernel;
  }
  return nullptr;
}

EXPORT const char* prepare(const onnxbolt::Kernel* kernel) { return kernel->prepare(); }
EXPORT const char* can_implement(const onnxbolt::Kernel* kernel, const void* arguments) {
  return kernel->can_implement(arguments);
}

// One launch on a stream of its own, waited for.
EXPORT const char* launch(const onnxbolt::Kernel* kernel, const void* arguments,
                          const int64_t* config) {
  const Workspace workspace(kernel, arguments, config);
  cudaStream_t stream;
  if (const char* error = Text(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
    return error;
  const char* error = kernel->run(arguments, MakeLaunch(workspace, config, stream));
  if (!error) error = Text(cudaStreamSynchronize(stream));
  cudaStreamDestroy(stream);
  return error;
}

// The launch recorded in a CUDA graph under the strictest capture mode, then replayed.
EXPORT const char* launch_captured(const onnxbolt::Kernel* kernel, const void* arguments,
                                   const int64_t* config) {
  const Workspace workspace(kernel, arguments, config);
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (const char* error = Text(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
    return error;
  const char* error = Text(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  if (!error) error = kernel->run(arguments, MakeLaunch(workspace, config, stream));
  cudaError_t captured = cudaStreamEndCapture(stream, &graph);
  if (!error) error = Text(captured);
  if (!error) error = Text(cudaGraphInstantiate(&executable, graph, 0));
  if (!error) error = Text(cudaGraphLaunch(executable, stream));
  if (!error) error = Text(cudaStreamSynchronize(stream));
  if (executable) cudaGraphExecDestroy(executable);
  if (graph) cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return error;
}
