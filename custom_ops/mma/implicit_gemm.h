// Forward convolution of CUTLASS 2.x as an implicit GEMM (mma.sync), NHWC: rows are output pixels,
// columns output channels.
#pragma once
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "mma/tile.h"
#include "ops/conv/check.h"

namespace onnxbolt {

// Each group of channels is a problem of its own, the third dimension of the grid: its input
// channels, filters and output channels begin where those of the group before it end.
//
// CUTLASS's ImplicitGemmConvolution passes a source and a destination tensor to its epilogue. A
// visitor takes the problem's shape instead, hence this kernel around the same main loop.
template <class MainLoop, class EpilogueType, class Swizzle>
struct ImplicitGemm {
  using Mma = MainLoop;
  using Epilogue = EpilogueType;
  using Visitor = typename Epilogue::FusionCallbacks;
  using Layout = cutlass::layout::TensorNHWC;
  static constexpr int kThreadCount = 32 * Mma::WarpCount::kCount;

  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::SharedStorage epilogue;
  };

  struct Params {
    cutlass::conv::Conv2dProblemSize problem;  // one group's problem
    cutlass::gemm::GemmCoord tiles;
    int swizzle_log_tile, k_iterations, k_iterations_per_channel;
    typename Mma::IteratorA::Params iterator_a;
    typename Mma::IteratorB::Params iterator_b;
    const typename Mma::IteratorA::Element* x;
    const typename Mma::IteratorB::Element* filter;
    typename Visitor::Params epilogue;
    cute::Shape<int, int, int> output;  // rows, channels, groups

    Params(const cutlass::conv::Conv2dProblemSize& problem, int groups, const Layout& x_layout,
           const void* x, const Layout& filter_layout, const void* filter,
           const typename Visitor::Params& epilogue)
        : problem(problem),
          iterator_a(Mma::IteratorA::getParams(problem, x_layout)),
          iterator_b(problem, filter_layout),
          x(static_cast<const typename Mma::IteratorA::Element*>(x)),
          filter(static_cast<const typename Mma::IteratorB::Element*>(filter)),
          epilogue(epilogue) {
      constexpr auto kFprop = cutlass::conv::Operator::kFprop;
      constexpr auto kAlgorithm = Mma::IteratorA::kIteratorAlgorithm;
      cutlass::gemm::GemmCoord extent = cutlass::conv::implicit_gemm_problem_size(kFprop, problem);
      output = cute::make_shape(extent.m(), extent.n(), groups);
      tiles = Swizzle::get_tiled_shape(extent, {Mma::Shape::kM, Mma::Shape::kN, Mma::Shape::kK},
                                       groups);
      swizzle_log_tile = Swizzle::get_log_tile(tiles);
      k_iterations =
          cutlass::conv::implicit_gemm_k_iterations(kFprop, Mma::Shape::kK, problem, kAlgorithm);
      k_iterations_per_channel =
          cutlass::conv::implicit_gemm_k_iterations_per_channel(kFprop, problem, kAlgorithm);
    }

    dim3 grid() const { return Swizzle::get_grid_shape(tiles); }
  };

  CUTLASS_DEVICE static void invoke(const Params& params, SharedStorage& shared) {
    cutlass::gemm::GemmCoord tile = Swizzle::get_tile_offset(params.swizzle_log_tile);
    if (tile.m() >= params.tiles.m() || tile.n() >= params.tiles.n())
      return;  // the swizzled grid is rounded up
    int thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = threadIdx.x % 32;

    const cutlass::conv::Conv2dProblemSize& problem = params.problem;
    const auto* x = params.x + tile.k() * problem.C;
    const auto* filter =
        params.filter + int64_t(tile.k()) * problem.K * problem.R * problem.S * problem.C;
    typename Mma::IteratorA iterator_a(params.iterator_a, problem, x, thread,
                                       {tile.m() * Mma::Shape::kM, 0});
    typename Mma::IteratorB iterator_b(params.iterator_b, problem, filter, thread,
                                       {0, tile.n() * Mma::Shape::kN});
    typename Mma::FragmentC accumulators;
    accumulators.clear();
    Mma mma(shared.main_loop, thread, warp, lane);
    mma(params.k_iterations, accumulators, iterator_a, iterator_b, accumulators,
        params.k_iterations_per_channel);

    Epilogue epilogue(params.epilogue, shared.epilogue, thread, warp, lane);
    epilogue(accumulators, tile, params.output, thread);
  }
};

template <class Instance>
__global__ void __launch_bounds__(Instance::Conv::kThreadCount)
    implicit_gemm_kernel(const __grid_constant__ typename Instance::Params params) {
  extern __shared__ int shared_memory[];
  Instance::Conv::invoke(params,
                         *reinterpret_cast<typename Instance::Conv::SharedStorage*>(shared_memory));
}

// y[n, p, q, k] = epilogue(x[n, h, w, c] * w[k, r, s, c / groups]). float is multiplied as TF32,
// rounded to nearest in registers.
template <class Config, class ElementType, class OutputType, class Chain>
struct ImplicitGemmConv {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Tile = Tile2x<Row, Element, Output, Chain>;
  using Layout = cutlass::layout::TensorNHWC;

  static constexpr auto kAlgorithm =
      Row::at(kIterator) == kAnalytic    ? cutlass::conv::IteratorAlgorithm::kAnalytic
      : Row::at(kIterator) == kOptimized ? cutlass::conv::IteratorAlgorithm::kOptimized
                                         : cutlass::conv::IteratorAlgorithm::kFixedChannels;
  static_assert(Row::at(kIterator) != kFixedChannels || Row::at(kAlignA) == Row::at(kAlignB),
                "fixed channels fill one access");

  using Default = typename cutlass::conv::kernel::DefaultConv2dFprop<
      Element, Layout, Element, Layout, Element, Layout, float, cutlass::arch::OpClassTensorOp,
      typename Tile::Arch, typename Tile::Threadblock, typename Tile::Warp,
      typename Tile::Instruction, typename Tile::OutputOp, typename Tile::Swizzle, Row::at(kStages),
      cutlass::arch::OpMultiplyAdd, kAlgorithm, cutlass::conv::StrideSupport::kStrided,
      Row::at(kAlignA), Row::at(kAlignB)>::Kernel;
  using Conv = ImplicitGemm<typename Default::Mma,
                            typename Tile::template Epilogue<typename Default::Epilogue>,
                            typename Tile::Swizzle>;
  using Params = typename Conv::Params;
  static constexpr int kSharedMemory = sizeof(typename Conv::SharedStorage);

  static const char* prepare() {
    return ReserveSharedMemory(implicit_gemm_kernel<ImplicitGemmConv>, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (conv.groups < 1 || conv.c % conv.groups != 0 || conv.k % conv.groups != 0)
      return "c and k have to be multiples of groups";
    if (conv.groups > 65535) return "a grid has at most 65535 groups";
    if (const char* error = CheckLayout(conv, false)) return error;
    const int c = conv.c / conv.groups, k = conv.k / conv.groups;
    if (const char* error = CheckExtents(int64_t(conv.n) * conv.p * conv.q, conv.k,
                                         int64_t(conv.r) * conv.s * conv.c))
      return error;
    if (const char* error = check_iterator(conv)) return error;
    if (c % Row::at(kAlignA) != 0 || conv.x_pitch % Row::at(kAlignA) != 0 ||
        !IsAligned(conv.x, Row::at(kAlignA) * sizeof(Element)))
      return "x, its pitch or a group's c is not aligned to align_a elements";
    if (c % Row::at(kAlignB) != 0 || !IsAligned(conv.filter, Row::at(kAlignB) * sizeof(Element)))
      return "the filter or a group's c is not aligned to align_b elements";
    if (k % Row::at(kAlignC) != 0 || conv.y_pitch % Row::at(kAlignC) != 0 ||
        !IsAligned(conv.y, Row::at(kAlignC) * sizeof(Output)))
      return "y, its pitch or a group's k is not aligned to align_c elements";
    return CheckOperands<Chain, Element>(conv.epilogue, Row::at(kAlignC));
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static Params describe(const ConvArguments& conv) {
    const int c = conv.c / conv.groups, k = conv.k / conv.groups;
    // Bottom and right padding are not given: p and q are, and what lies outside of the image reads
    // as zero.
    cutlass::conv::Conv2dProblemSize problem(conv.n, conv.h, conv.w, c, k, conv.r, conv.s, conv.p,
                                             conv.q, conv.pad_top, conv.pad_left, conv.stride_h,
                                             conv.stride_w, conv.dilation_h, conv.dilation_w,
                                             cutlass::conv::Mode::kCrossCorrelation);
    int pitch = static_cast<int>(conv.x_pitch);
    Layout x_layout({pitch, conv.w * pitch, conv.h * conv.w * pitch});
    return Params(problem, conv.groups, x_layout, conv.x, Layout::packed({k, conv.r, conv.s, c}),
                  conv.filter, {conv.epilogue, static_cast<Output*>(conv.y), conv.y_pitch});
  }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& conv = *static_cast<const ConvArguments*>(arguments);
    if (conv.n == 0 || conv.p == 0 || conv.q == 0 || conv.k == 0) return nullptr;
    const Params params = describe(conv);
    implicit_gemm_kernel<ImplicitGemmConv>
        <<<params.grid(), Conv::kThreadCount, kSharedMemory, launch.stream>>>(params);
    return ErrorText(cudaGetLastError());
  }

 private:
  static const char* check_iterator(const ConvArguments& conv) {
    constexpr int64_t kLimit = 2147483647;
    int64_t image = int64_t(conv.h) * conv.w * conv.x_pitch;
    if (image > kLimit || int64_t(conv.r) * conv.s * conv.c > kLimit)
      return "one image or one filter exceeds 2^31 - 1 elements";
    if constexpr (Row::at(kIterator) == kOptimized) {
      if (conv.r > 32 || conv.s > 32)
        return "the optimized iterator's masks hold 32 filter rows and columns";
    }
    if constexpr (Row::at(kIterator) == kFixedChannels) {
      if (conv.c != Row::at(kAlignA))
        return "the fixed-channels iterator needs c == align_a, and no groups";
      if (image * conv.n > kLimit / (8 * int(sizeof(Element))))
        return "x exceeds the fixed-channels iterator's 32-bit bit offsets";
    }
    return nullptr;
  }
};

}  // namespace onnxbolt
