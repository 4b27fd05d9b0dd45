// Tensor maps: descriptions of tensors for TMA, which the driver encodes on the host. A launch
// encodes its own, in about a microsecond.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "cutlass/numeric_types.h"

namespace onnxbolt {
namespace sm90 {

// As an operand of a product, float is rounded to TF32 when it is copied into shared memory.
template <class T>
constexpr CUtensorMapDataType kOperandType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType kOperandType<cutlass::bfloat16_t> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType kOperandType<float> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
template <>
constexpr CUtensorMapDataType kOperandType<int8_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kOperandType<uint8_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kOperandType<cutlass::float_e4m3_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <class T>
constexpr CUtensorMapDataType kPlainType = kOperandType<T>;
template <>
constexpr CUtensorMapDataType kPlainType<float> = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

// Columns of a tile that are one row in shared memory: as many as make a swizzled row of 128, 64 or
// 32 bytes, else all of them.
template <class T>
constexpr int BoxColumns(int columns) {
  for (int bytes : {128, 64, 32}) {
    if (columns * static_cast<int>(sizeof(T)) % bytes == 0)
      return bytes / static_cast<int>(sizeof(T));
  }
  return columns;
}

// Columns of a result that are stored, and of a residual that are loaded, at once. Copies of short
// rows are slow, loads more than stores. So, where swizzled rows would be short, rows are not
// swizzled: they have all of a tile's columns, or equal parts of up to 256 bytes, of which at worst
// two share a bank (docs/decisions/sm90-kernels.md).
template <class T>
constexpr int StoredColumns(int columns, bool residual) {
  const int bytes = columns * static_cast<int>(sizeof(T));
  if (sizeof(T) != 2 || bytes % (residual ? 128 : 64) == 0 || bytes == 64 || bytes == 32)
    return BoxColumns<T>(columns);
  int parts = 1;
  while (columns % (8 * parts) != 0 || bytes / parts > 256 || bytes / parts % 64 == 0) ++parts;
  return columns / parts;
}

// Rows of 128, 64 and 32 bytes are swizzled, others are not.
inline CUtensorMapSwizzle SwizzleOf(int row_bytes) {
  switch (row_bytes) {
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

// One dimension of a tensor: its extent, the bytes from one index to the next (unused for the
// innermost dimension), the indices of one copy, and their distance.
struct Dimension {
  int64_t extent, stride;
  int box, step = 1;
};

// One spatial axis of an im2col tensor: its extent, the stride of the filter's positions, and the
// range of positions of the filter's first tap: its first corner, and how far the last one stays
// from the image's end.
struct Im2colAxis {
  int64_t extent;
  int stride, lower, upper;
};

// Returns a function of the driver, which is looked up at run time so that nothing links to the
// driver's library; nullptr if the driver is too old.
template <class Function>
Function* DriverFunction(const char* name) {
  constexpr int kCuda12 = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, kCuda12, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Function*>(function)
             : nullptr;
}

// The bytes that L2 fetches from memory at a time. If rows are not whole lines of 128 bytes,
// fetching two lines would be more than a copy's row, and neighbouring rows would fetch the same
// lines.
inline CUtensorMapL2promotion Promotion(int64_t row_bytes, CUtensorMapL2promotion most) {
  return row_bytes % 128 == 0 ? most : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
}

// A tensor that is copied in boxes. Parts of a box outside of the tensor read as zeros and are not
// written.
inline const char* EncodeTiled(CUtensorMap& map, CUtensorMapDataType type, int element_bytes,
                               const void* data, std::initializer_list<Dimension> dimensions,
                               CUtensorMapL2promotion most = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  static auto* const encode =
      DriverFunction<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (!encode) return "the driver cannot encode tensor maps: CUDA 12 is needed";
  cuuint64_t extents[5], strides[5];
  cuuint32_t box[5], steps[5];
  int rank = 0;
  for (const Dimension& dimension : dimensions) {
    extents[rank] = dimension.extent, box[rank] = dimension.box * dimension.step,
    steps[rank] = dimension.step;
    if (rank > 0) strides[rank - 1] = dimension.stride;
    ++rank;
  }
  const CUresult result =
      encode(&map, type, rank, const_cast<void*>(data), extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(static_cast<int>(box[0]) * element_bytes),
             Promotion(strides[0], most), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver refuses the tensor map";
}

// NHWC activations as pixels of an implicit GEMM, or NDHWC as those of a volume: a copy has
// `channels` of `pixels`.
struct Im2colTensor {
  int64_t n, c;
  int64_t pitch;                           // bytes from one pixel to the next
  std::initializer_list<Im2colAxis> axes;  // width, height, depth
};

inline const char* EncodeIm2col(CUtensorMap& map, CUtensorMapDataType type, int element_bytes,
                                const void* data, const Im2colTensor& tensor, int channels,
                                int pixels) {
  static auto* const encode =
      DriverFunction<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  if (!encode) return "the driver cannot encode tensor maps: CUDA 12 is needed";
  cuuint64_t extents[5] = {cuuint64_t(tensor.c)}, strides[4] = {cuuint64_t(tensor.pitch)};
  cuuint32_t steps[5] = {1};
  int lower[3], upper[3], rank = 1;
  for (const Im2colAxis& axis : tensor.axes) {
    lower[rank - 1] = axis.lower, upper[rank - 1] = axis.upper;
    extents[rank] = axis.extent, steps[rank] = axis.stride;
    strides[rank] = strides[rank - 1] * axis.extent;
    ++rank;
  }
  extents[rank] = tensor.n, steps[rank] = 1;
  ++rank;
  const CUresult result =
      encode(&map, type, rank, const_cast<void*>(data), extents, strides, lower, upper, channels,
             pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(channels * element_bytes),
             Promotion(tensor.pitch, CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver refuses the im2col tensor map";
}

}  // namespace sm90
}  // namespace onnxbolt
