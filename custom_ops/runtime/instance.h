// Parts of every kernel family: the configuration row as a type, the checks of a launch, and the
// registration.
#pragma once
#include <cuda_runtime.h>

#include "cutlass/numeric_types.h"
#include "runtime/kernel.h"

namespace onnxbolt {

// A configuration row at compile time.
template <int64_t... Numbers>
struct Config {
  static_assert(sizeof...(Numbers) == kConfigWidth, "a configuration row has kConfigWidth numbers");
  static constexpr int64_t kRow[kConfigWidth] = {Numbers...};
  static constexpr int at(Column column) { return static_cast<int>(kRow[column]); }
};

// An architecture's facts and capabilities, by the number in a row's first column. Each generated
// unit defines this type for its own architecture (templates/arch.h.j2), from onnxbolt/archs/.
template <int64_t Number>
struct Arch;
template <class Row>
using ArchOf = Arch<Row::at(kArch)>;

// The element's number in ONNX's TensorProto.DataType.
template <class T>
struct OnnxType;
template <>
struct OnnxType<float> {
  static constexpr int value = kTypeF32;
};
template <>
struct OnnxType<cutlass::half_t> {
  static constexpr int value = kTypeF16;
};
template <>
struct OnnxType<cutlass::bfloat16_t> {
  static constexpr int value = kTypeBF16;
};
template <>
struct OnnxType<int8_t> {
  static constexpr int value = kTypeI8;
};
template <>
struct OnnxType<uint8_t> {
  static constexpr int value = kTypeU8;
};
template <>
struct OnnxType<cutlass::float_e4m3_t> {
  static constexpr int value = kTypeE4M3;
};

inline const char* ErrorText(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// True if a pointer is aligned to `bytes`, or to 16: no access is wider.
inline bool IsAligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % (bytes < 16 ? bytes : 16) == 0;
}

// Reserves shared memory, and loads the kernel: a first launch inside a CUDA graph's capture could
// not load it.
template <class Function>
const char* ReserveSharedMemory(Function* kernel, int bytes) {
  return ErrorText(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Checks the operands of an epilogue against the kernel's accesses of `align` elements.
template <class Chain, class Element>
const char* CheckOperands(const EpilogueArguments& operands, int align) {
  for (int i = 0; i < Chain::kVectors; ++i) {
    if (operands.vectors[i] == nullptr) return "an epilogue vector is missing";
    if (!IsAligned(operands.vectors[i], align * sizeof(float)))
      return "an epilogue vector is not aligned to align_c elements";
  }
  for (int i = 0; i < Chain::kTensors; ++i) {
    if (operands.tensors[i] == nullptr) return "an epilogue tensor is missing";
    if (!IsAligned(operands.tensors[i], align * sizeof(Element)) ||
        operands.tensor_pitch[i] % align != 0)
      return "an epilogue tensor or its pitch is not aligned to align_c elements";
  }
  if constexpr (Chain::kRotated) {
    const RotationArguments& rotation = operands.rotation;
    if (rotation.table == nullptr || rotation.rows < 1 || rotation.first < 0)
      return "the table of a rotation is missing";
    if (rotation.width < 8 || rotation.width % 8 != 0 || rotation.columns % rotation.width != 0)
      return "the columns of a rotation are no multiples of its table's, or these of 8";
    if (!IsAligned(rotation.table, 8 * sizeof(Element)))
      return "the table of a rotation is not aligned to 8 elements";
  }
  return nullptr;
}

// Checks the extents of a product, which kernels count in 32 bits.
inline const char* CheckExtents(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLimit = 2147483647;
  if (m < 0 || n < 0 || k < 1) return "an extent is negative, or k is zero";
  return m <= kLimit && n <= kLimit && k <= kLimit ? nullptr : "an extent exceeds 2^31 - 1";
}

// One instance in the library's list. Instance has Row, Element, Output, kSharedMemory and the four
// functions of Kernel; a launch decides the columns AtLaunch of its configuration.
template <class Instance, Column... AtLaunch>
struct Registered {
  static_assert(kConfigWidth <= 32, "a column is a bit of Kernel::at_launch");
  Kernel kernel;

  explicit Registered(const char* epilogue)
      : kernel{epilogue,
               OnnxType<typename Instance::Element>::value,
               OnnxType<typename Instance::Output>::value,
               {},
               (0u | ... | (1u << AtLaunch)),
               Instance::kSharedMemory,
               Instance::prepare,
               Instance::can_implement,
               Instance::workspace_size,
               Instance::run} {
    for (int i = 0; i < kConfigWidth; ++i) kernel.config[i] = Instance::Row::kRow[i];
    RegisterKernel(&kernel);
  }
};

}  // namespace onnxbolt
