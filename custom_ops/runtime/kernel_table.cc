#include "runtime/kernel_table.h"

#include <algorithm>
#include <cstring>

namespace onnxbolt {
namespace {

Kernel* head = nullptr;  // constant-initialized, hence ready before the units' static registrations

bool IsFor(const Kernel& kernel, const int64_t* config) {
  for (int column = 0; column < kConfigWidth; ++column) {
    const bool at_launch = kernel.at_launch >> column & 1;
    if (!at_launch && config[column] != kernel.config[column]) return false;
  }
  return true;
}

}  // namespace

void RegisterKernel(Kernel* kernel) {
  kernel->next = head;
  head = kernel;
}

const Kernel* FirstKernel() { return head; }

const Kernel* FindKernel(const Op& op, const int64_t* config) {
  for (const Kernel* kernel = head; kernel; kernel = kernel->next) {
    if (kernel->element == op.element && kernel->output == op.output &&
        !std::strcmp(kernel->epilogue, op.epilogue) && IsFor(*kernel, config)) {
      return kernel;
    }
  }
  return nullptr;
}

int LargestSharedMemory(int arch) {
  int largest = 0;
  for (const Kernel* kernel = head; kernel; kernel = kernel->next) {
    if (kernel->config[kArch] == arch) largest = std::max(largest, kernel->shared_memory);
  }
  return largest;
}

}  // namespace onnxbolt
