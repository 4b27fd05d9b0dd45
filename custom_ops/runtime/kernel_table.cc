#include "runtime/kernel_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace onnxbolt {
namespace {

template <size_t Count>
bool Contains(const Family (&families)[Count], int64_t family) {
  return std::find(std::begin(families), std::end(families), static_cast<Family>(family)) !=
         std::end(families);
}

Kernel* head = nullptr;  // constant-initialized, hence ready before the units' static registrations

bool DecidedAtLaunch(int column, int64_t family) {
  const bool is_tile = column == kWarpM || column == kWarpN || column == kWarpK;
  return column == kMinM || column == kMaxM || column == kSplitK ||
         (column == kSwizzle && Contains(kSwizzledAtLaunch, family)) ||
         (is_tile && Contains(kTiledAtLaunch, family));
}

bool SameInstance(const int64_t* a, const int64_t* b) {
  for (int column = 0; column < kConfigWidth; ++column) {
    if (a[column] != b[column] && !DecidedAtLaunch(column, a[kFamily])) return false;
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
        !std::strcmp(kernel->epilogue, op.epilogue) && SameInstance(config, kernel->config)) {
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
