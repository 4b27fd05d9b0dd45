// Group normalization on the host.
#include "emulator.h"
#include "intrinsics.h"

namespace onnxbolt {
namespace group_norm {
alignas(128) float4 shared_memory[emulated::kMemory / sizeof(float4)];
}
}  // namespace onnxbolt

#include "families/group_norm/kernel.h"
// here come the architectures and Kernels, a tuple of instances

namespace {

struct Instance {
  const char* (*can_implement)(const void*);
  size_t (*workspace_size)(const void*, const int64_t*);
  const char* (*run)(const void*, const onnxbolt::Launch&);
};

template <class... Instances>
Instance Find(std::tuple<Instances...>*, int index) {
  const Instance all[] = {{Instances::can_implement, Instances::workspace_size, Instances::run}...};
  return all[index];
}

}  // namespace

// Runs a kernel with the row `config`; the text of an error, or null.
extern "C" const char* host_normalize(int index, const int64_t* config,
                                      const onnxbolt::GroupNormArguments* arguments) {
  const Instance kernel = Find(static_cast<Kernels*>(nullptr), index);
  if (const char* error = kernel.can_implement(arguments)) return error;
  emulated::machine.memory = reinterpret_cast<char*>(onnxbolt::group_norm::shared_memory);
  std::vector<char> workspace(kernel.workspace_size(arguments, config), char(0xff));
  return kernel.run(arguments, {workspace.data(), config, nullptr, 4});
}
