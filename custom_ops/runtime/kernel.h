// The interface of generated units and the runtime: a kernel's description, and the list of
// compiled kernels. The arguments of a launch are those of an op kind (ops/<kind>/arguments.h).
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/declarations.h"

namespace onnxbolt {

// cos and sin of pairs of neighbouring columns, in their places: a table [rows, width] that repeats
// along the rows, from row `first` on, and along the first columns of the output. Width is a
// multiple of 8, and `columns` of the width; further columns are not rotated.
struct RotationArguments {
  const void* table = nullptr;  // in the kernel's element type
  int rows = 0, width = 0, columns = 0, first = 0;
};

// Operands of the epilogue's steps, each list in the order of the steps that use it.
struct EpilogueArguments {
  const float* vectors[kMaxVectors] = {};  // one value per output channel
  const void* tensors[kMaxTensors] = {};   // shaped like the output, in the kernel's element type
  int64_t tensor_pitch[kMaxTensors] = {};  // elements from one row (pixel) to the next
  float params[kMaxParams] = {};
  RotationArguments rotation;
};

struct Launch {
  void* workspace;
  const int64_t* config;  // the node's row, with the columns that a launch decides
  cudaStream_t stream;
  int sm_count;
};

// One compiled instance. Every function returns nullptr on success, else a static text that says
// what is wrong.
struct Kernel {
  const char* epilogue;  // the epilogue's steps, e.g. "Bias,Add,Relu"
  int element, output;   // ONNX element types of inputs and of the output
  int64_t config[kConfigWidth];
  uint32_t at_launch;        // a bit for each column of the configuration that a launch decides
  int shared_memory;         // bytes of dynamic shared memory of one block
  const char* (*prepare)();  // once per device, at kernel creation
  const char* (*can_implement)(const void* arguments);  // GemmArguments, ConvArguments, ..
  size_t (*workspace_size)(const void* arguments, const int64_t* config);
  const char* (*run)(const void* arguments, const Launch& launch);
  Kernel* next = nullptr;
};

// Adds a kernel to the list. Generated units do so by static initialization (runtime/instance.h),
// before the library is used.
void RegisterKernel(Kernel* kernel);
const Kernel* FirstKernel();

}  // namespace onnxbolt
