// Facts of the device from its driver that CUDA does not tell.
#pragma once
#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace onnxbolt {
namespace profiler {

// NVML, the driver's management library, for device 0. It is no part of the toolkit, hence dlopen.
class Nvml {
 public:
  static const Nvml& get() {
    static const Nvml nvml;
    return nvml;
  }

  int power_limit() const {
    return static_cast<int>((Ask("nvmlDeviceGetEnforcedPowerLimit") + 500) / 1000);
  }

  int clock_mhz() const {
    constexpr int kSmClock = 1;  // NVML_CLOCK_SM
    unsigned mhz = 0;
    const auto ask = Function<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    return device_ && ask && !ask(device_, kSmClock, &mhz) ? static_cast<int>(mhz) : 0;
  }

 private:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    char bus[32];
    const auto initialize = Function<int()>("nvmlInit_v2");
    const auto find = Function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (!initialize || !find || initialize() ||
        cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess)
      return;
    if (find(bus, &device_)) device_ = nullptr;
  }

  template <class Signature>
  Signature* Function(const char* name) const {
    return library_ ? reinterpret_cast<Signature*>(dlsym(library_, name)) : nullptr;
  }

  unsigned Ask(const char* name) const {
    unsigned value = 0;
    const auto ask = Function<int(void*, unsigned*)>(name);
    return device_ && ask && !ask(device_, &value) ? value : 0;
  }

  void* library_;
  void* device_ = nullptr;
};

}  // namespace profiler
}  // namespace onnxbolt
