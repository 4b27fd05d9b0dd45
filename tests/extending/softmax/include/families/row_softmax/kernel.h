// Softmax of rows times a scale, for every architecture: a warp to each row.
//
// A warp reads its row three times: for the maximum, for the sum of exponentials, and for the
// result. A row of up to some thousand columns stays in L1 meanwhile.
//
// Constraints: none.
#pragma once
#include "ops/scaled_softmax/arguments.h"
#include "runtime/instance.h"

namespace extending {

constexpr int kLanes = 32;

template <class Combine>
__device__ float Reduced(float value, Combine combine) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffff, value, distance));
  return value;
}

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element>
static __global__ void row_softmax(const __grid_constant__ ScaledSoftmaxArguments args) {
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  if (row >= args.rows) return;
  const Element* x = static_cast<const Element*>(args.x) + row * args.x_pitch;
  Element* y = static_cast<Element*>(args.y) + row * args.y_pitch;
  const int first = threadIdx.x % kLanes;
  float largest = -INFINITY, sum = 0.f;
  for (int64_t i = first; i < args.columns; i += kLanes)
    largest = fmaxf(largest, args.scale * float(x[i]));
  largest = Reduced(largest, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t i = first; i < args.columns; i += kLanes)
    sum += expf(args.scale * float(x[i]) - largest);
  sum = Reduced(sum, [](float a, float b) { return a + b; });
  for (int64_t i = first; i < args.columns; i += kLanes)
    y[i] = Element(expf(args.scale * float(x[i]) - largest) / sum);
}

}  // namespace extending

namespace onnxbolt {

// Rows of a block are a fact of the configuration; the kernel is the same for all of them.
template <class Config, class ElementType>
struct RowSoftmax {
  using Row = Config;
  using Element = ElementType;
  using Output = ElementType;
  static constexpr int kSharedMemory = 0;
  static constexpr int kRows = Row::at(kTileM);  // rows of a block

  static const char* prepare() { return ReserveSharedMemory(extending::row_softmax<Element>, 0); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const extending::ScaledSoftmaxArguments*>(arguments);
    return CheckExtents(args.rows, 1, args.columns);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const extending::ScaledSoftmaxArguments*>(arguments);
    if (args.rows == 0) return nullptr;
    const int64_t blocks = (args.rows + kRows - 1) / kRows;
    extending::row_softmax<Element><<<blocks, kRows * extending::kLanes, 0, launch.stream>>>(args);
    return ErrorText(cudaGetLastError());
  }
};

}  // namespace onnxbolt
