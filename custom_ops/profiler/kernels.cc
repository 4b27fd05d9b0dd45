// The one function of a library of candidates; what measures them is in a library of its own, and
// serves all of them.
#include "runtime/kernel_table.h"

extern "C" __attribute__((visibility("default"))) const onnxbolt::Kernel* onnxbolt_find_kernel(
    const char* epilogue, int element, int output, const int64_t* config) {
  onnxbolt::Op op{};
  op.element = element;
  op.output = output;
  op.epilogue = epilogue;
  return onnxbolt::FindKernel(op, config);
}
