#include "runtime/kernel_table.h"

#include <algorithm>
#include <cstring>

namespace onnxbolt {
namespace {

// onnxbolt/kernels/config.py: SWIZZLED_AT_LAUNCH
constexpr bool SwizzledAtLaunch(int64_t family) {
  return family == 2 || family == 5 || family == 6;
}

// Families whose warp columns say how a tile lies in the image; onnxbolt/kernels/config.py:
// TILED_AT_LAUNCH
constexpr bool TiledAtLaunch(int64_t family) { return family == 7 || family == 15; }

Kernel* head = nullptr;  // constant-initialized, hence ready before the units' static registrations

bool DecidedAtLaunch(int column, int64_t family) {
  const bool is_tile = column == kWarpM || column == kWarpN || column == kWarpK;
  return column == kMinM || column == kMaxM || column == kSplitK ||
         (column == kSwizzle && SwizzledAtLaunch(family)) || (is_tile && TiledAtLaunch(family));
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

std::string TypeName(int type) {
  switch (type) {
    case 1:
      return "f32";
    case 10:
      return "f16";
    case 16:
      return "bf16";
    default:
      return "type " + std::to_string(type);
  }
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

std::string ArchName(int arch) { return "sm_" + std::to_string(arch) + (arch == 90 ? "a" : ""); }

std::string DescribeConfig(const Op& op, const int64_t* config) {
  return ArchName(static_cast<int>(config[kArch])) + " family " + std::to_string(config[kFamily]) +
         " " + TypeName(op.element) + "->" + TypeName(op.output) + " epilogue \"" + op.epilogue +
         "\" threadblock " + Tile(config + kTileM) + " warp " + Tile(config + kWarpM) + " stages " +
         std::to_string(config[kStages]) + " alignment " + std::to_string(config[kAlignA]) + "," +
         std::to_string(config[kAlignB]) + "," + std::to_string(config[kAlignC]);
}

}  // namespace onnxbolt
