// Kernels of normalizations on the host.
#include "emulator.h"
#include "intrinsics.h"

// one block runs at a time
#undef __shared__
#define __shared__ static

#include "families/norm/kernel.h"
// here come the architectures and Kernels, a tuple of instances

namespace {

struct Instance {
  const char* (*can_implement)(const void*);
  const char* (*run)(const void*, const onnxbolt::Launch&);
};

template <class... Instances>
Instance Find(std::tuple<Instances...>*, int index) {
  const Instance all[] = {{Instances::can_implement, Instances::run}...};
  return all[index];
}

char memory[emulated::kMemory];

}  // namespace

// Runs a kernel on a GPU of two SMs; the text of an error, or null.
extern "C" const char* host_normalize(int index, const onnxbolt::NormArguments* arguments) {
  const Instance kernel = Find(static_cast<Kernels*>(nullptr), index);
  if (const char* error = kernel.can_implement(arguments)) return error;
  emulated::machine.memory = memory;
  onnxbolt::Launch launch{};
  launch.sm_count = 2;
  return kernel.run(arguments, launch);
}
