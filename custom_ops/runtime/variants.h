// Kernels that differ in the width of their accesses, of which a launch takes the widest that its
// operands allow.
#pragma once
#include "runtime/instance.h"

namespace onnxbolt {

// The kernels of one width.
template <class Params, int Count>
struct Variant {
  int width;  // elements of an access
  void (*functions[Count])(Params);
};

// The variants of `Instance`, which makes one by `variant<Width>()`: accesses of 16 bytes, of 4
// bytes, and of one element.
template <class Instance>
struct Variants {
  using Element = typename Instance::Element;
  static constexpr auto kWidest = Instance::template variant<16 / sizeof(Element)>();
  static constexpr decltype(kWidest) kAll[3] = {
      kWidest, Instance::template variant<4 / sizeof(Element)>(), Instance::template variant<1>()};

  static const char* prepare() {
    for (const auto& variant : kAll) {
      for (const auto function : variant.functions) {
        if (const char* error = ReserveSharedMemory(function, Instance::kSharedMemory))
          return error;
      }
    }
    return nullptr;
  }

  // The widest for which `fits(width)` is true; one element always fits.
  template <class Fits>
  static const auto& widest(const Fits& fits) {
    return fits(kAll[0].width) ? kAll[0] : fits(kAll[1].width) ? kAll[1] : kAll[2];
  }
};

}  // namespace onnxbolt
