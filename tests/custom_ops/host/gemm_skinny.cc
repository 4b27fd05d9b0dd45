// GEMMs of few rows on the host.
#include "emulator.h"
#include "intrinsics.h"

namespace onnxbolt {
namespace gemm_skinny {
alignas(128) float4 shared_memory[emulated::kMemory / sizeof(float4)];
}
}  // namespace onnxbolt

#include "families/gemm_skinny/kernel.h"
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

}  // namespace

// Runs a kernel with the row `config`; the text of an error, or null.
extern "C" const char* host_multiply(int index, const int64_t* config,
                                     const onnxbolt::GemmArguments* arguments) {
  const Instance kernel = Find(static_cast<Kernels*>(nullptr), index);
  if (const char* error = kernel.can_implement(arguments)) return error;
  emulated::machine.memory = reinterpret_cast<char*>(onnxbolt::gemm_skinny::shared_memory);
  return kernel.run(arguments, {nullptr, config, nullptr, 4});
}
