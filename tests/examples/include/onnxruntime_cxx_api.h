// The part of ONNX Runtime's C++ API that examples/cpp uses, declared here because ORT's wheels
// ship no headers. Names and signatures are the official ones, for which docs/deploy/cpp.md says
// where Microsoft's header is; tests take that one where ORT_INCLUDE names its folder.
//
// A function of the C API is its slot and its signature, as in custom_ops/runtime/ort_abi.h.
#pragma once
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/ort_abi.h"

struct OrtEnv;
struct OrtSession;
struct OrtRunOptions;
struct OrtTypeInfo;
struct OrtModelMetadata;
struct OrtCUDAProviderOptionsV2;

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum ONNXType { ONNX_TYPE_UNKNOWN, ONNX_TYPE_TENSOR };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
};

extern "C" const OrtApiBase* OrtGetApiBase();

// the functions that a program calls by name
struct OrtApi {
  void* slots_before_205[205];
  OrtStatus* (*CreateCUDAProviderOptions)(OrtCUDAProviderOptionsV2**);
  OrtStatus* (*UpdateCUDAProviderOptions)(OrtCUDAProviderOptionsV2*, const char* const* keys,
                                          const char* const* values, size_t count);
  void* slot_207;
  void (*ReleaseCUDAProviderOptions)(OrtCUDAProviderOptionsV2*);
};

namespace Ort {

inline const OrtApi& GetApi() {
  static const OrtApi* const api = [] {
    const OrtApi* found = OrtGetApiBase()->GetApi(onnxbolt::ort::kMinimumOrt);
    if (!found) std::abort();  // GetApi has printed why
    onnxbolt::ort::api_table = reinterpret_cast<const void* const*>(found);
    return found;
  }();
  return *api;
}

struct Exception : std::exception {
  explicit Exception(std::string text) : message(std::move(text)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

inline void ThrowOnError(OrtStatus* status) {
  if (!status) return;
  std::string text = onnxbolt::ort::GetErrorMessage(status);
  onnxbolt::ort::ReleaseStatus(status);
  throw Exception(std::move(text));
}

namespace detail {

// Calls the function at a slot and throws its error.
template <int Slot, class... Arguments>
void Call(Arguments... arguments) {
  GetApi();
  ThrowOnError(onnxbolt::ort::Function<Slot, OrtStatus*(Arguments...)>()(arguments...));
}

// Owns an object of the C API, which the function at slot `Release` frees.
template <class T, int Release>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T* owned) : object(owned) {}
  Handle(Handle&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Handle() {
    if (object) onnxbolt::ort::Function<Release, void(T*)>()(object);
  }
  operator T*() const { return object; }

 protected:
  T* object = nullptr;
};

struct FreeByAllocator {
  void operator()(char* text) const {
    Call<76, OrtAllocator*, void*>(allocator, text);  // AllocatorFree
  }
  OrtAllocator* allocator;
};

}  // namespace detail

using AllocatedStringPtr = std::unique_ptr<char, detail::FreeByAllocator>;

struct Env : detail::Handle<OrtEnv, 92> {
  Env(OrtLoggingLevel level, const char* id) {
    detail::Call<3, OrtLoggingLevel, const char*, OrtEnv**>(level, id, &object);  // CreateEnv
  }
};

struct AllocatorWithDefaultOptions {
  AllocatorWithDefaultOptions() { detail::Call<78, OrtAllocator**>(&object); }
  operator OrtAllocator*() const { return object; }
  OrtAllocator* object = nullptr;  // ONNX Runtime's own
};

struct RunOptions : detail::Handle<OrtRunOptions, 97> {
  explicit RunOptions(std::nullptr_t) {}
};

struct SessionOptions : detail::Handle<OrtSessionOptions, 100> {
  SessionOptions() { detail::Call<10, OrtSessionOptions**>(&object); }
  SessionOptions& AddConfigEntry(const char* key, const char* value) {
    detail::Call<130, OrtSessionOptions*, const char*, const char*>(object, key, value);
    return *this;
  }
  SessionOptions& EnableProfiling(const char* prefix) {
    detail::Call<14, OrtSessionOptions*, const char*>(object, prefix);
    return *this;
  }
  SessionOptions& RegisterCustomOpsLibrary(const char* path) {  // RegisterCustomOpsLibrary_V2
    detail::Call<228, OrtSessionOptions*, const char*>(object, path);
    return *this;
  }
  SessionOptions& AppendExecutionProvider_CUDA_V2(const OrtCUDAProviderOptionsV2& options) {
    detail::Call<204, OrtSessionOptions*, const OrtCUDAProviderOptionsV2*>(object, &options);
    return *this;
  }
};

// A tensor's element type and shape; `Info` says who owns the C object.
template <class Info>
struct TensorTypeAndShape : Info {
  using Info::Info;
  ONNXTensorElementDataType GetElementType() const {
    ONNXTensorElementDataType type{};
    detail::Call<60, const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*>(*this, &type);
    return type;
  }
  std::vector<int64_t> GetShape() const {
    size_t rank = 0;
    ThrowOnError(onnxbolt::ort::GetDimensionsCount(*this, &rank));
    std::vector<int64_t> shape(rank);
    ThrowOnError(onnxbolt::ort::GetDimensions(*this, shape.data(), rank));
    return shape;
  }
  size_t GetElementCount() const {
    size_t count = 0;
    detail::Call<64, const OrtTensorTypeAndShapeInfo*, size_t*>(*this, &count);
    return count;
  }
};

struct Unowned {
  explicit Unowned(const OrtTensorTypeAndShapeInfo* info) : object(info) {}
  operator const OrtTensorTypeAndShapeInfo*() const { return object; }
  const OrtTensorTypeAndShapeInfo* object;
};

using ConstTensorTypeAndShapeInfo = TensorTypeAndShape<Unowned>;
using TensorTypeAndShapeInfo = TensorTypeAndShape<detail::Handle<OrtTensorTypeAndShapeInfo, 99>>;

struct TypeInfo : detail::Handle<OrtTypeInfo, 98> {
  using Handle::Handle;
  ONNXType GetONNXType() const {
    ONNXType type{};
    detail::Call<56, const OrtTypeInfo*, ONNXType*>(object, &type);
    return type;
  }
  ConstTensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const {
    const OrtTensorTypeAndShapeInfo* found = nullptr;
    detail::Call<55, const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**>(object, &found);
    return ConstTensorTypeAndShapeInfo(found);
  }
};

struct MemoryInfo : detail::Handle<OrtMemoryInfo, 94> {
  static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory) {
    MemoryInfo made;
    detail::Call<69, OrtAllocatorType, OrtMemType, OrtMemoryInfo**>(type, memory, &made.object);
    return made;
  }
};

struct Value : detail::Handle<OrtValue, 96> {
  using Handle::Handle;
  static Value CreateTensor(const OrtMemoryInfo* info, void* data, size_t bytes,
                            const int64_t* shape, size_t rank, ONNXTensorElementDataType type) {
    Value made;
    detail::Call<49, const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t,
                 ONNXTensorElementDataType, OrtValue**>(info, data, bytes, shape, rank, type,
                                                        &made.object);
    return made;
  }
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const {
    OrtTensorTypeAndShapeInfo* found = nullptr;
    ThrowOnError(onnxbolt::ort::GetTensorTypeAndShape(object, &found));
    return TensorTypeAndShapeInfo(found);
  }
  const void* GetTensorRawData() const {
    void* data = nullptr;
    ThrowOnError(onnxbolt::ort::GetTensorData(object, &data));
    return data;
  }
};

struct ModelMetadata : detail::Handle<OrtModelMetadata, 118> {
  using Handle::Handle;
  AllocatedStringPtr LookupCustomMetadataMapAllocated(const char* key,
                                                      OrtAllocator* allocator) const {
    char* value = nullptr;
    detail::Call<116, const OrtModelMetadata*, OrtAllocator*, const char*, char**>(
        object, allocator, key, &value);
    return AllocatedStringPtr(value, {allocator});
  }
};

struct Session : detail::Handle<OrtSession, 95> {
  Session(const Env& env, const char* path, const SessionOptions& options) {
    detail::Call<7, const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**>(
        env, path, options, &object);
  }
  size_t GetInputCount() const { return Count<30>(); }
  size_t GetOutputCount() const { return Count<31>(); }
  AllocatedStringPtr GetInputNameAllocated(size_t index, OrtAllocator* allocator) const {
    return Name<36>(index, allocator);
  }
  AllocatedStringPtr GetOutputNameAllocated(size_t index, OrtAllocator* allocator) const {
    return Name<37>(index, allocator);
  }
  TypeInfo GetInputTypeInfo(size_t index) const {
    OrtTypeInfo* found = nullptr;
    detail::Call<33, const OrtSession*, size_t, OrtTypeInfo**>(object, index, &found);
    return TypeInfo(found);
  }
  ModelMetadata GetModelMetadata() const {
    OrtModelMetadata* found = nullptr;
    detail::Call<111, const OrtSession*, OrtModelMetadata**>(object, &found);
    return ModelMetadata(found);
  }
  std::vector<Value> Run(const RunOptions& options, const char* const* input_names,
                         const Value* inputs, size_t input_count, const char* const* output_names,
                         size_t output_count) {
    const std::vector<const OrtValue*> given(inputs, inputs + input_count);
    std::vector<OrtValue*> found(output_count);
    detail::Call<9, OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*,
                 size_t, const char* const*, size_t, OrtValue**>(
        object, options, input_names, given.data(), input_count, output_names, output_count,
        found.data());
    std::vector<Value> outputs;
    for (OrtValue* value : found) outputs.emplace_back(value);
    return outputs;
  }

 private:
  template <int Slot>
  size_t Count() const {
    size_t count = 0;
    detail::Call<Slot, const OrtSession*, size_t*>(object, &count);
    return count;
  }
  template <int Slot>
  AllocatedStringPtr Name(size_t index, OrtAllocator* allocator) const {
    char* name = nullptr;
    detail::Call<Slot, const OrtSession*, size_t, OrtAllocator*, char**>(object, index, allocator,
                                                                         &name);
    return AllocatedStringPtr(name, {allocator});
  }
};

}  // namespace Ort
