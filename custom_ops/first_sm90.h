// A model's first convolution for sm_90a: few input channels, read from NCHW as they are, in fp32 or the kernel's type; NHWC output.
//
// Bound by its output, hence made to keep stores flowing: the warpgroups of a block share the weights, which stay in shared memory, and
// have tiles of their own. While one waits for pixels, others multiply and store.
#pragma once
#include "dependent_launch.h"
#include "first/patch.h"
#include "first/product.h"

namespace onnxbolt {
namespace first {

// The columns of a product, as many at a time as a store takes.
template <class Plan, class Epilogue>
__device__ void Finish(const sm90::Accumulators<Plan::kN>& sums, Epilogue& epilogue, const ImageOutput& to, int channels) {
  constexpr int kColumns = Plan::Finish::kUnitColumns, kValues = kColumns / 2;
#pragma unroll
  for (int column = 0; column < Plan::kN; column += kColumns)
    epilogue.finish_unit(reinterpret_cast<const float(&)[kValues]>(sums[column / 2]), 0, column, channels, to);
}

// The tiles of one warpgroup, whose pixels `patch` has begun to load.
template <class Plan, class Pixel>
__device__ void Run(const Params& params, const Memory<Plan>& memory, int group, int index, int channel, Patch<Plan, Pixel>& patch) {
  sm90::Epilogue<typename Plan::Finish> epilogue(memory.epilogue(group), params.epilogue, 1 + group);
  epilogue.load_vectors(channel, params.k);
  const MainLoop<Plan> main_loop(memory, group, Shift(params, Plan{}));
  const int step = gridDim.x * Plan::kGroups;
  for (; index < params.tiles; index += step) {
    patch.write(memory.patch(group));
    sm90::SyncThreads(1 + group, kGroupThreads);
    if (index + step < params.tiles) patch.fetch(Tile::at(params, index + step, Plan{}));
    const Tile tile = Tile::at(params, index, Plan{});
#pragma unroll 1
    for (int unit = 0; unit < Plan::kUnits; ++unit) {
      typename MainLoop<Plan>::Sums sums;
      main_loop.multiply(sums, unit);
      Finish<Plan>(sums, epilogue, {params.y, tile.image, tile.row + unit * kUnitRows, tile.column, channel}, params.k);
    }
    sm90::SyncThreads(1 + group, kGroupThreads);  // nobody reads the patch any more
  }
  epilogue.drain();
}

template <class Plan, class Pixel>
__global__ void __launch_bounds__(Plan::kThreads, 1) FirstKernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) char shared[];
  const Memory<Plan> memory{shared};
  // neighbouring tiles go to different SMs, so that few tiles occupy as many as there are
  const int group = threadIdx.x / kGroupThreads, channel = blockIdx.y * Plan::kN, first = blockIdx.x + group * gridDim.x;
  LaunchDependents();
  if (threadIdx.x == 0) sm90::Prefetch(params.y);
  Weights<Plan> weights(params, channel);  // they do not depend on the kernels before
  WaitForPredecessors();
  Patch<Plan, Pixel> patch(params);
  if (first < params.tiles) patch.fetch(Tile::at(params, first, Plan{}));
  weights.write(memory.weights());
  sm90::FenceAsyncProxy();
  __syncthreads();
  Run<Plan>(params, memory, group, first, channel, patch);
}

}  // namespace first

// y[n, p, q, k] = epilogue(x[n, c, h, w] * w[k, r, s, c]) for fp16 and bf16. The columns of its configuration: first/plan.h.
template <class Config, class ElementType, class OutputType, class Chain>
struct FirstSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Plan = first::Plan<Config, Element, Output, Chain>;
  static constexpr int kSharedMemory = Plan::kSharedMemory;

  static const char* prepare() {
    if (const char* error = ReserveSharedMemory(first::FirstKernel<Plan, float>, kSharedMemory)) return error;
    return ReserveSharedMemory(first::FirstKernel<Plan, Element>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (const char* error = CheckExtents(int64_t(conv.n) * conv.p * conv.q, conv.k, int64_t(conv.r) * conv.s * conv.c)) return error;
    if (conv.x_planes != OnnxType<float>::value && conv.x_planes != OnnxType<Element>::value)
      return "a first convolution reads NCHW, in fp32 or the kernel's type";
    if (conv.groups != 1 || conv.dilation_h != 1 || conv.dilation_w != 1) return "a first convolution has no groups and no dilation";
    if (conv.r != Plan::kR || conv.s != Plan::kS || conv.c != Plan::kC || conv.stride_h != Plan::kStrideH ||
        conv.stride_w != Plan::kStrideW)
      return "the kernel is for another filter or stride";
    if (int64_t(conv.c) * conv.h * conv.w > 2147483647) return "an image exceeds 2^31 - 1 elements";
    if (conv.k % 8 != 0 || conv.y_pitch * sizeof(Output) % 16 != 0 || !IsAligned(conv.y, 16))
      return "y, its pitch or k is not aligned to 16 bytes";
    return CheckOperands<Chain, Element>(conv.epilogue, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (int64_t(conv.n) * conv.p * conv.q * conv.k == 0) return nullptr;
    first::Params params{};
    params.column_tiles = cutlass::FastDivmod(CeilDivide(conv.q, first::kTileColumns));
    params.row_tiles = cutlass::FastDivmod(CeilDivide(conv.p, Plan::kTileRows));
    params.tiles = conv.n * params.row_tiles.divisor * params.column_tiles.divisor;
    params.h = conv.h, params.w = conv.w, params.k = conv.k, params.pad_top = conv.pad_top, params.pad_left = conv.pad_left;
    params.x = conv.x, params.filter = conv.filter, params.epilogue = conv.epilogue;
    if (const char* error = encode(conv, params)) return error;
    const int channel_blocks = CeilDivide(conv.k, Plan::kN);
    const dim3 grid(std::min(params.tiles, std::max(launch.sm_count / channel_blocks, 1)), channel_blocks);
    const auto kernel = conv.x_planes == OnnxType<float>::value ? first::FirstKernel<Plan, float> : first::FirstKernel<Plan, Element>;
    return LaunchDependent(kernel, grid, Plan::kThreads, launch.stream, params, Row::at(kArch), kSharedMemory);
  }

 private:
  static const char* encode(const ConvArguments& conv, first::Params& params) {
    const int64_t pixel = conv.y_pitch * int64_t(sizeof(Output)), row = pixel * conv.q;
    return sm90::EncodeTiled(params.y, sm90::kPlainType<Output>, sizeof(Output), conv.y,
                             {{conv.k, 0, Plan::Finish::kUnitColumns},
                              {conv.q, pixel, first::kTileColumns},
                              {conv.p, row, first::kUnitRows},
                              {conv.n, row * conv.p, 1}});
  }
};

}  // namespace onnxbolt
