// Integer arithmetic for counts of tiles and layouts of memory. Values are not negative and far
// from their type's limit.
#pragma once
#include <type_traits>

namespace onnxbolt {

template <class T>
constexpr T CeilDivide(T value, std::common_type_t<T> divisor) {
  return (value + divisor - 1) / divisor;
}

template <class T>
constexpr T RoundUp(T value, std::common_type_t<T> multiple) {
  return CeilDivide(value, multiple) * multiple;
}

}  // namespace onnxbolt
