// The part of ONNX Runtime's C ABI that the library calls, declared here because ORT's wheels ship
// no headers.
//
// `struct OrtApi` is a table of function pointers to which releases only append, so a function is
// its slot (0-based) and its signature; one binary runs with every ORT from kMinimumOrt on. A
// slot's release is noted where it is not 1.12.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtApi;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtShapeInferContext;
struct OrtOpAttr;

struct OrtApiBase {
  const OrtApi* (*GetApi)(
      uint32_t version);  // null, and a line on stderr, if version is above the runtime's
  const char* (*GetVersionString)();  // "1.minor.patch"
};

// ORT reads a field only from the value of `version` on that stands behind it.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);   // 8
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);  // 8
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);       // 13
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);         // 14
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);      // 14
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);        // 14
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);     // 14
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                               void**);                                         // 16
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);                      // 16
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);  // 17
  int (*GetStartVersion)(const OrtCustomOp*);                                   // 17
  int (*GetEndVersion)(const OrtCustomOp*);                                     // 17
  size_t (*GetMayInplace)(int**, int**);                                        // 18
  void (*ReleaseMayInplace)(int*, int*);                                        // 18
  size_t (*GetAliasMap)(int**, int**);                                          // 18
  void (*ReleaseAliasMap)(int*, int*);                                          // 18
};

}  // extern "C"

static_assert(sizeof(OrtCustomOp) == 26 * sizeof(void*), "OrtCustomOp is 26 pointer-sized fields");
static_assert(offsetof(OrtCustomOp, InferOutputShapeFn) == 19 * sizeof(void*),
              "OrtCustomOp's order of fields is ABI");

namespace onnxbolt::ort {

constexpr int kMinimumOrt = 18;      // 1.18: KernelContext_GetScratchBuffer, KernelInfoGetAllocator
constexpr int kCustomOpFields = 18;  // the newest `version` of OrtCustomOp that is declared above

// ORT's EP_FAIL is left out: its Python API answers it by starting the session again without the
// GPU.
enum ErrorCode { kInvalidArgument = 2, kRuntimeException = 6, kNotImplemented = 9 };
enum MemoryType { kHostMemory = -2, kDeviceMemory = 0 };  // for inputs of nodes
enum Characteristic { kRequired = 0 };
enum AttributeType { kInt = 1, kInts = 2, kFloat = 3, kFloats = 4 };

inline const void* const* api_table = nullptr;  // set once by registration, before any other call

template <int Slot, class Signature>
struct Function;

template <int Slot, class Result, class... Arguments>
struct Function<Slot, Result(Arguments...)> {
  Result operator()(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void*>(api_table[Slot]))(
        arguments...);
  }
};

// status
inline constexpr Function<0, OrtStatus*(int code, const char* text)> CreateStatus;
inline constexpr Function<1, int(const OrtStatus*)> GetErrorCode;
inline constexpr Function<2, const char*(const OrtStatus*)> GetErrorMessage;
inline constexpr Function<93, void(OrtStatus*)> ReleaseStatus;

// registration; ORT keeps the domain's pointer, so it has to outlive every session
inline constexpr Function<26, OrtStatus*(const char* name, OrtCustomOpDomain**)>
    CreateCustomOpDomain;
inline constexpr Function<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)> CustomOpDomainAdd;
inline constexpr Function<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
inline constexpr Function<237, OrtStatus*(const OrtSessionOptions*, const char* key, int*)>
    HasSessionConfigEntry;  // 1.14
inline constexpr Function<238,
                          OrtStatus*(const OrtSessionOptions*, const char* key, char*, size_t*)>
    GetSessionConfigEntry;  // 1.14

// kernel creation; arrays and strings are asked for their size with a null buffer first, a string's
// size counts its end
inline constexpr Function<85, OrtStatus*(const OrtKernelInfo*, const char* name, float*)>
    KernelInfoGetFloat;
inline constexpr Function<86, OrtStatus*(const OrtKernelInfo*, const char* name, int64_t*)>
    KernelInfoGetInt;
inline constexpr Function<162, OrtStatus*(const OrtKernelInfo*, const char* name, float*, size_t*)>
    KernelInfoGetFloats;
inline constexpr Function<163,
                          OrtStatus*(const OrtKernelInfo*, const char* name, int64_t*, size_t*)>
    KernelInfoGetInts;
inline constexpr Function<244, OrtStatus*(const OrtKernelInfo*, char*, size_t*)>
    KernelInfoGetNodeName;  // 1.15
inline constexpr Function<278, OrtStatus*(const OrtKernelInfo*, int memory_type, OrtAllocator**)>
    KernelInfoGetAllocator;  // 1.18

// one run
inline constexpr Function<90, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**)>
    GetInput;
inline constexpr Function<91, OrtStatus*(OrtKernelContext*, size_t, const int64_t* dims,
                                         size_t rank, OrtValue**)>
    GetOutput;
inline constexpr Function<193, OrtStatus*(const OrtKernelContext*, void** stream)>
    GetGpuComputeStream;
inline constexpr Function<277, OrtStatus*(const OrtKernelContext*, const OrtMemoryInfo*,
                                          size_t bytes, void**)>
    GetScratchBuffer;  // 1.18

// tensors; what GetTensorTypeAndShape gives is the caller's to release, what ShapeInferGetInput
// gives is not
inline constexpr Function<51, OrtStatus*(OrtValue*, void**)> GetTensorData;
inline constexpr Function<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)>
    GetTensorTypeAndShape;
inline constexpr Function<194, OrtStatus*(const OrtValue*, const OrtMemoryInfo**)>
    GetTensorMemoryInfo;
inline constexpr Function<57, OrtStatus*(OrtTensorTypeAndShapeInfo**)> CreateTensorTypeAndShape;
inline constexpr Function<58, OrtStatus*(OrtTensorTypeAndShapeInfo*, int type)> SetElementType;
inline constexpr Function<59, OrtStatus*(OrtTensorTypeAndShapeInfo*, const int64_t*, size_t)>
    SetDimensions;
inline constexpr Function<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*)>
    GetDimensionsCount;
inline constexpr Function<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)>
    GetDimensions;
inline constexpr Function<63, OrtStatus*(const OrtTensorTypeAndShapeInfo*, const char**, size_t)>
    GetSymbolicDimensions;
inline constexpr Function<271, OrtStatus*(OrtTensorTypeAndShapeInfo*, const char**, size_t)>
    SetSymbolicDimensions;  // 1.17
inline constexpr Function<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShape;

// memory
inline constexpr Function<72, OrtStatus*(const OrtMemoryInfo*, int*)> MemoryInfoGetId;
inline constexpr Function<76, OrtStatus*(OrtAllocator*, void*)> AllocatorFree;
inline constexpr Function<77, OrtStatus*(const OrtAllocator*, const OrtMemoryInfo**)>
    AllocatorGetInfo;
inline constexpr Function<132, void(OrtAllocator*)> ReleaseAllocator;

// shape inference (1.17)
inline constexpr Function<268, OrtStatus*(const OrtShapeInferContext*, size_t,
                                          OrtTensorTypeAndShapeInfo**)>
    ShapeInferGetInput;
inline constexpr Function<269, OrtStatus*(const OrtShapeInferContext*, const char* name,
                                          const OrtOpAttr**)>
    ShapeInferGetAttribute;
inline constexpr Function<270, OrtStatus*(OrtShapeInferContext*, size_t,
                                          const OrtTensorTypeAndShapeInfo*)>
    ShapeInferSetOutput;
inline constexpr Function<272, OrtStatus*(const OrtOpAttr*, int type, void*, size_t bytes, size_t*)>
    ReadAttribute;

}  // namespace onnxbolt::ort
