// Attention kernels on the host.
#include "emulator.h"

namespace onnxbolt {
namespace attention {
alignas(128) uint4 shared_memory[emulated::kMemory / sizeof(uint4)];
}
}  // namespace onnxbolt

#include "families/attention/kernel.h"
// here come the architectures and Kernels, a tuple of instances

namespace {

using Function = const char* (*)(const void*, const onnxbolt::Launch&);

struct Instance {
  const char* (*can_implement)(const void*);
  Function run;
};

template <class... Instances>
Instance Find(std::tuple<Instances...>*, int index) {
  const Instance all[] = {{Instances::can_implement, Instances::run}...};
  return all[index];
}

}  // namespace

// Runs a kernel; the text of an error, or null. `eager`: copies are done when they are issued, else
// when they are waited for.
extern "C" const char* host_attend(int index, bool eager,
                                   const onnxbolt::AttentionArguments* arguments) {
  const Instance kernel = Find(static_cast<Kernels*>(nullptr), index);
  if (const char* error = kernel.can_implement(arguments)) return error;
  emulated::machine.eager = eager;
  emulated::machine.memory = reinterpret_cast<char*>(onnxbolt::attention::shared_memory);
  return kernel.run(arguments, {});
}
