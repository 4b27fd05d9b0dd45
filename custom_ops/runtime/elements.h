// The element types of tensors, by their number in ONNX.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/declarations.h"

namespace onnxbolt {

// Bytes of one element; 0 for a type that no kernel has.
constexpr int64_t BytesOf(int type) {
  for (const ElementFacts& element : kElements) {
    if (element.type == type) return element.bytes;
  }
  return type == kTypeBool ? 1 : type == kTypeI32 ? 4 : type == kTypeI64 ? 8 : 0;
}

// True for a type of codes, whose values are scaled.
constexpr bool IsCode(int type) { return type == kTypeI8 || type == kTypeU8 || type == kTypeE4M3; }

// The type of the weights by which a type is multiplied.
constexpr int WeightOf(int type) {
  for (const ElementFacts& element : kElements) {
    if (element.type == type) return element.weight;
  }
  return type;
}

// "f16", or "type 7" for one that no kernel has.
inline std::string TypeName(int type) {
  for (const ElementFacts& element : kElements) {
    if (element.type == type) return element.name;
  }
  return "type " + std::to_string(type);
}

}  // namespace onnxbolt
