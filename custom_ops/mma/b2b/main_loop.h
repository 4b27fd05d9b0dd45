// The first product of back-to-back products, by one of CUTLASS 2.x's main loops: the parameters of
// a launch, and a block's part.
//
// Columns beyond the layer's end have to be zeros in shared memory: they become values along k of
// the next product.
#pragma once
#include "mma/implicit_gemm.h"
#include "ops/conv/arguments.h"
#include "ops/gemm_chain/arguments.h"
#include "runtime/integers.h"
#include "cutlass/gemm/kernel/default_gemm_universal.h"

namespace onnxbolt {
namespace b2b_2x {

// The main loop of a GEMM by CUTLASS 2.x, with copies that fill up with zeros.
template <class Row, class Element>
struct MatrixMainLoop {
  using Tile = Tile2x<Row, Element, Element, epilogue::Chain<>>;
  using Mma = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      Element, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, Row::at(kAlignA),
      Element, cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, Row::at(kAlignB),
      Element, cutlass::layout::RowMajor, float, cutlass::arch::OpClassTensorOp,
      typename Tile::Arch, typename Tile::Threadblock, typename Tile::Warp,
      typename Tile::Instruction, typename Tile::OutputOp, typename Tile::Swizzle, Row::at(kStages),
      cutlass::arch::OpMultiplyAdd,
      cutlass::gemm::SharedMemoryClearOption::kZfill>::GemmKernel::Mma;

  struct Operands {
    int rows, k, columns;
    Element *a, *weights;
    typename Mma::IteratorA::Params a_params;
    typename Mma::IteratorB::Params weight_params;
  };

  static Operands describe(const ChainArguments& chain) {
    using RowsOfA = typename Mma::IteratorA::Layout;
    using Weights = typename Mma::IteratorB::Layout;
    return {static_cast<int>(chain.m),
            static_cast<int>(chain.k),
            static_cast<int>(chain.n[0]),
            static_cast<Element*>(const_cast<void*>(chain.a)),
            static_cast<Element*>(const_cast<void*>(chain.weights[0])),
            typename Mma::IteratorA::Params(RowsOfA(chain.lda)),
            typename Mma::IteratorB::Params(Weights(chain.weight_pitch(0)))};
  }

  CUTLASS_DEVICE static void multiply(const Operands& operands, Mma& mma,
                                      typename Mma::FragmentC& sums) {
    const int thread = threadIdx.x, first_row = static_cast<int>(blockIdx.x) * Mma::Shape::kM;
    typename Mma::IteratorA rows(operands.a_params, operands.a, {operands.rows, operands.k}, thread,
                                 {first_row, 0});
    typename Mma::IteratorB weights(operands.weight_params, operands.weights,
                                    {operands.k, operands.columns}, thread, {0, 0});
    mma(CeilDivide(operands.k, Mma::Shape::kK), sums, rows, weights, sums);
  }
};

// The main loop of an implicit GEMM by CUTLASS 2.x, whose rows are pixels of images, with copies
// that fill up with zeros.
template <class Row, class Element>
struct ImageMainLoop {
  using Alone = ImplicitGemmConv<Row, Element, Element, epilogue::Chain<>>;
  using Mma = typename Alone::Conv::Mma;
  using Operands = typename Alone::Params;

  static Operands describe(const ConvArguments& conv) { return Alone::describe(conv); }

  CUTLASS_DEVICE static void multiply(const Operands& operands, Mma& mma,
                                      typename Mma::FragmentC& sums) {
    const int thread = threadIdx.x, first_row = static_cast<int>(blockIdx.x) * Mma::Shape::kM;
    typename Mma::IteratorA pixels(operands.iterator_a, operands.problem, operands.x, thread,
                                   {first_row, 0});
    typename Mma::IteratorB filters(operands.iterator_b, operands.problem, operands.filter, thread,
                                    {0, 0});
    mma(operands.k_iterations, sums, pixels, filters, sums, operands.k_iterations_per_channel);
  }
};

}  // namespace b2b_2x
}  // namespace onnxbolt
