#include "runtime/kernel_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "runtime/elements.h"

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

std::string Tile(const int64_t* shape) {
  return std::to_string(shape[0]) + "x" + std::to_string(shape[1]) + "x" + std::to_string(shape[2]);
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

std::string ArchName(int arch) {
  for (const ArchFacts& known : kKnownArchs) {
    if (known.number == arch) return known.name;
  }
  return "sm_" + std::to_string(arch);
}

std::string DescribeConfig(const Op& op, const int64_t* config) {
  return ArchName(static_cast<int>(config[kArch])) + " family " + std::to_string(config[kFamily]) +
         " " + TypeName(op.element) + "->" + TypeName(op.output) + " epilogue \"" + op.epilogue +
         "\" threadblock " + Tile(config + kTileM) + " warp " + Tile(config + kWarpM) + " stages " +
         std::to_string(config[kStages]) + " alignment " + std::to_string(config[kAlignA]) + "," +
         std::to_string(config[kAlignB]) + "," + std::to_string(config[kAlignC]);
}

}  // namespace onnxbolt
