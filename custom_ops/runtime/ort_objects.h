// ORT's C objects as C++ values: statuses become exceptions inside the library and statuses again
// at its border.
#pragma once
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/ort_abi.h"

namespace onnxbolt::ort {

struct Error : std::runtime_error {
  Error(ErrorCode error_code, const std::string& text)
      : std::runtime_error(text), code(error_code) {}
  ErrorCode code;
};

inline void Check(OrtStatus* status) {
  if (!status) return;
  const Error error(static_cast<ErrorCode>(GetErrorCode(status)), GetErrorMessage(status));
  ReleaseStatus(status);
  throw error;
}

// True for success: for questions whose failure is an answer, like "is there such an attribute?"
inline bool Succeeds(OrtStatus* status) {
  if (status) ReleaseStatus(status);
  return !status;
}

// Runs `body` and returns its exception, if any, as the status that ORT expects of a callback.
template <class Body>
OrtStatus* AsStatus(const std::string& where, Body&& body) noexcept {
  const auto status = [&where](ErrorCode code, const char* text) {
    return CreateStatus(code, ("onnxbolt: " + where + ": " + text).c_str());
  };
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return status(error.code, error.what());
  } catch (const std::exception& error) {
    return status(kRuntimeException, error.what());
  }
}

struct ReleaseShape {
  void operator()(OrtTensorTypeAndShapeInfo* info) const { ReleaseTensorTypeAndShape(info); }
};
using OwnedShape = std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseShape>;

struct AllocatorDeleter {
  void operator()(OrtAllocator* allocator) const { ReleaseAllocator(allocator); }
};
using OwnedAllocator = std::unique_ptr<OrtAllocator, AllocatorDeleter>;

using Shape = std::vector<int64_t>;

inline Shape Dimensions(const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  Check(GetDimensionsCount(info, &rank));
  Shape shape(rank);
  Check(GetDimensions(info, shape.data(), rank));
  return shape;
}

inline Shape ShapeOf(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(GetTensorTypeAndShape(value, &info));
  const OwnedShape owned(info);
  return Dimensions(info);
}

inline void* DataOf(const OrtValue* value) {
  void* data = nullptr;
  Check(GetTensorData(const_cast<OrtValue*>(value), &data));
  return data;
}

inline std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace onnxbolt::ort
