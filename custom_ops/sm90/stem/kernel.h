// The kernel of a stem convolution, a model's first one, on x in NCHW with few channels.
//
// How it works: the weights of a block's output channels stay in shared memory, and each warpgroup
// has tiles of its own. It copies the pixels under a tile through registers into shared memory
// (sm90/stem/patch.h), reads wgmma's operand A from there (sm90/stem/product.h), and hands the
// accumulators to the epilogue. The output is the bottleneck, so stores must keep flowing: while
// one warpgroup waits for pixels, others multiply and store.
//
// Constraints: see sm90/stem/plan.h; elements of 2 bytes in the product, no groups, dilations or
// residuals.
#pragma once
#include "ops/conv/check.h"
#include "runtime/dependent_launch.h"
#include "sm90/stem/patch.h"
#include "sm90/stem/product.h"

namespace onnxbolt {
namespace stem {

// Stores the columns of a product, as many at a time as one store takes.
template <class Plan>
__device__ void Store(const sm90::Accumulators<Plan::Finish::kColumns>& sums,
                      typename Plan::Epilogue& epilogue, const ImageOutput& to, int channels) {
  constexpr int kColumns = Plan::Finish::kUnitColumns, kValues = kColumns / 2;
#pragma unroll
  for (int column = 0; column < Plan::Finish::kColumns; column += kColumns)
    epilogue.finish_unit(reinterpret_cast<const float (&)[kValues]>(sums[column / 2]), 0, column,
                         channels, to);
}

// Works through the tiles of one warpgroup; `patch` has begun to load the first one's pixels.
template <class Plan, class End, class Pixel>
__device__ void Run(const typename End::Params& params, const Memory<Plan>& memory, int group,
                    int index, int channel, Patch<Plan, Pixel>& patch) {
  End end(params, memory, group, channel);
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
      end.finish(sums, {params.y, tile.image, tile.row + unit * kUnitRows, tile.column, channel});
    }
    sm90::SyncThreads(1 + group, kGroupThreads);  // until no thread reads the patch
  }
  end.drain();
}

// The kernel's body. End: what finishes a unit's accumulators. Its `begin` may set up constants,
// which all threads see after the barrier.
template <class Plan, class End, class Pixel>
__global__ void __launch_bounds__(Plan::kThreads, 1)
    StemKernel(const __grid_constant__ typename End::Params params) {
  extern __shared__ __align__(1024) char shared[];
  const Memory<Plan> memory{shared};
  // neighbouring tiles go to different SMs, so that few tiles occupy as many SMs
  const int group = threadIdx.x / kGroupThreads, channel = blockIdx.y * Plan::kN,
            first = blockIdx.x + group * gridDim.x;
  LaunchDependents();
  if (threadIdx.x == 0) sm90::Prefetch(params.y);
  End::begin(params, memory);
  Weights<Plan> weights(params, channel);  // they do not depend on the kernels before
  WaitForPredecessors();
  Patch<Plan, Pixel> patch(params);
  if (first < params.tiles) patch.fetch(Tile::at(params, first, Plan{}));
  weights.write(memory.weights());
  sm90::FenceAsyncProxy();
  __syncthreads();
  Run<Plan, End>(params, memory, group, first, channel, patch);
}

// The parameters of a launch, without the output's tensor map and epilogue.
template <class Plan>
void Describe(const ConvArguments& conv, Params& params) {
  params.column_tiles = cutlass::FastDivmod(CeilDivide(conv.q, kTileColumns));
  params.row_tiles = cutlass::FastDivmod(CeilDivide(conv.p, Plan::kTileRows));
  params.tiles = conv.n * params.row_tiles.divisor * params.column_tiles.divisor;
  params.h = conv.h, params.w = conv.w, params.k = conv.k, params.pad_top = conv.pad_top,
  params.pad_left = conv.pad_left;
  params.x = conv.x, params.filter = conv.filter;
}

// The tensor map of y [n, p, q, channels] of Output.
template <class Plan>
const char* EncodeOutput(const ConvArguments& conv, int64_t channels, CUtensorMap& y) {
  using Output = typename Plan::Output;
  const int64_t pixel = conv.y_pitch * int64_t(sizeof(Output)), row = pixel * conv.q;
  return sm90::EncodeTiled(y, sm90::kPlainType<Output>, sizeof(Output), conv.y,
                           {{channels, 0, Plan::Finish::kUnitColumns},
                            {conv.q, pixel, kTileColumns},
                            {conv.p, row, 1},
                            {conv.n, row * conv.p, 1}});
}

// Checks the convolution; `channels`: the output's. Returns nullptr if the kernel serves it, else
// what is wrong.
template <class Plan>
const char* Check(const ConvArguments& conv, int64_t channels) {
  if (const char* error = CheckExtents(int64_t(conv.n) * conv.p * conv.q, conv.k,
                                       int64_t(conv.r) * conv.s * conv.c))
    return error;
  if (conv.x_nchw != OnnxType<float>::value &&
      conv.x_nchw != OnnxType<typename Plan::Element>::value)
    return "a stem convolution reads NCHW, in fp32 or the kernel's type";
  if (const char* error = CheckLayout(conv, false)) return error;
  if (conv.groups != 1 || conv.dilation_h != 1 || conv.dilation_w != 1)
    return "a stem convolution has no groups and no dilation";
  if (conv.r != Plan::kR || conv.s != Plan::kS || conv.c != Plan::kC ||
      conv.stride_h != Plan::kStrideH || conv.stride_w != Plan::kStrideW)
    return "the kernel is for another filter or stride";
  if (int64_t(conv.c) * conv.h * conv.w > 2147483647) return "an image exceeds 2^31 - 1 elements";
  if (channels % (Plan::kCodes ? sm90::kPairedColumns : 8) != 0 ||
      conv.y_pitch * sizeof(typename Plan::Output) % 16 != 0 || !IsAligned(conv.y, 16))
    return "y, its pitch or k is not aligned to 16 bytes";
  return nullptr;
}

}  // namespace stem
}  // namespace onnxbolt
