// Kernels that move or sample the pixels of images, on the host.
#include "emulator.h"
#include "intrinsics.h"

#include "families/grid_sample/kernel.h"
#include "families/pixel_shuffle/kernel.h"
#include "families/resize/kernel.h"
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

alignas(128) char memory[emulated::kMemory];

}  // namespace

// Runs a kernel; the text of an error, or null.
extern "C" const char* host_run(int index, const void* arguments) {
  const Instance kernel = Find(static_cast<Kernels*>(nullptr), index);
  if (const char* error = kernel.can_implement(arguments)) return error;
  emulated::machine.memory = memory;
  return kernel.run(arguments, {nullptr, nullptr, nullptr, 4});
}
