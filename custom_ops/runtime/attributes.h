// A node's attributes, wherever they are read from.
#pragma once
#include "runtime/ort_objects.h"

namespace onnxbolt {

struct Attributes {
  virtual ~Attributes() = default;
  virtual ort::Shape Ints(const char* name) const = 0;  // empty if it is absent
  virtual std::vector<float> Floats(const char* name) const = 0;
  virtual int64_t Int(const char* name, int64_t otherwise) const = 0;
  virtual float Float(const char* name, float otherwise) const = 0;
};

}  // namespace onnxbolt
