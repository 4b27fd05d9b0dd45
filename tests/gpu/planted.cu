// Candidates that do harm, each registered as a generated kernel is: PLANT(what it does,
// "epilogue", row of its configuration).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/gemm/arguments.h"
#include "ops/norm/arguments.h"
#include "runtime/kernel.h"

namespace {

using onnxbolt::GemmArguments;
using onnxbolt::Launch;
using onnxbolt::NormArguments;

__global__ void WriteNowhere(int* nowhere) { *nowhere = 1; }

__global__ void Spin() {
  while (clock64() != -1) {
  }
}

const char* Crash(const void*, const Launch& launch) {
  WriteNowhere<<<1, 1, 0, launch.stream>>>(reinterpret_cast<int*>(0x40));
  return nullptr;
}

const char* Hang(const void*, const Launch& launch) {
  Spin<<<1, 1, 0, launch.stream>>>();
  return nullptr;
}

// Quicker than any product: a memset.
const char* Zero(const void* arguments, const Launch& launch) {
  const auto& gemm = *static_cast<const GemmArguments*>(arguments);
  cudaMemsetAsync(gemm.d, 0, gemm.m * gemm.ldd * 2, launch.stream);
  return nullptr;
}

// bias and ReLU of each product, as it should be, but for one value of all.
__global__ void NearlyRight(const GemmArguments gemm) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = i / gemm.n,
                column = i % gemm.n;
  if (i >= int64_t(gemm.m) * gemm.n) return;
  float sum = gemm.epilogue.vectors[0][column];
  for (int64_t k = 0; k < gemm.k; ++k)
    sum += float(static_cast<const __half*>(gemm.a)[row * gemm.lda + k]) *
           float(static_cast<const __half*>(gemm.b)[column * gemm.ldb + k]);
  static_cast<__half*>(gemm.d)[row * gemm.ldd + column] =
      __half(fmaxf(sum, 0.f) + (i == 4321 ? 0.25f : 0.f));
}

const char* Pixel(const void* arguments, const Launch& launch) {
  const auto& gemm = *static_cast<const GemmArguments*>(arguments);
  NearlyRight<<<unsigned((int64_t(gemm.m) * gemm.n + 255) / 256), 256, 0, launch.stream>>>(gemm);
  return nullptr;
}

// A normalization by gamma and beta, a thread for each row, as it should be but for one value.
__global__ void NormalizeRows(const NormArguments norm, float wrong) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= norm.rows) return;
  const __half* x = static_cast<const __half*>(norm.x) + row * norm.x_pitch;
  float mean = 0, variance = 0;
  for (int c = 0; c < norm.columns; ++c) mean += float(x[c]) / norm.columns;
  for (int c = 0; c < norm.columns; ++c)
    variance += (float(x[c]) - mean) * (float(x[c]) - mean) / norm.columns;
  for (int c = 0; c < norm.columns; ++c) {
    const float value = (float(x[c]) - mean) * rsqrtf(variance + norm.epsilon);
    static_cast<__half*>(norm.y)[row * norm.y_pitch + c] =
        __half(value * norm.epilogue.vectors[0][c] + norm.epilogue.vectors[1][c] +
               (row == 432 && c == 1 ? wrong : 0.f));
  }
}

const char* Normalize(const void* arguments, const Launch& launch, float wrong) {
  const auto& norm = *static_cast<const NormArguments*>(arguments);
  NormalizeRows<<<unsigned((norm.rows + 255) / 256), 256, 0, launch.stream>>>(norm, wrong);
  return nullptr;
}

const char* Rows(const void* arguments, const Launch& launch) {
  return Normalize(arguments, launch, 0.f);
}

const char* Row(const void* arguments, const Launch& launch) {
  return Normalize(arguments, launch, 0.05f);
}

// a launch decides the range of m alone
constexpr uint32_t kRange = 1u << onnxbolt::kMinM | 1u << onnxbolt::kMaxM;

const char* Agree() { return nullptr; }
const char* AgreeTo(const void*) { return nullptr; }
size_t NoWorkspace(const void*, const int64_t*) { return 0; }

}  // namespace

#define PLANT(Run, Epilogue, ...)                                                                \
  static onnxbolt::Kernel kernel_##Run{Epilogue, 10,      10,          {__VA_ARGS__}, kRange, 0, \
                                       Agree,    AgreeTo, NoWorkspace, Run,           nullptr};  \
  static const bool registered_##Run = (onnxbolt::RegisterKernel(&kernel_##Run), true);
