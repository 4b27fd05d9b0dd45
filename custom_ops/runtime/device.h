// The choice of the library's architecture for a GPU.
#pragma once
#include <string>

namespace onnxbolt {

struct Selection {
  int arch = 0;  // one of the manifest's architectures; 0: none, for this reason
  std::string reason;
};

// Looks at CUDA device `ordinal`. A device runs code of its own architecture, else of the nearest
// lower minor of its major whose kernels fit its shared memory; sm_90a code runs on 9.0 alone.
Selection SelectArch(int ordinal);

std::string ArchName(int number);  // 90 -> "sm_90a"

}  // namespace onnxbolt
