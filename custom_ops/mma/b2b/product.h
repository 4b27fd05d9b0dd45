// From one layer to the next with mma.sync: accumulators go through their layer's epilogue and
// become the operand of the next product. They stay in registers, since accumulators of m16n8 have
// the layout of its operand, or go through shared memory.
//
// All threads of a warp call every function.
#pragma once
#include "mma/b2b/shape.h"
#include "ops/gemm_chain/arguments.h"
#include "cutlass/arch/memory_sm75.h"
#include "cutlass/arch/mma.h"

namespace onnxbolt {
namespace b2b_2x {

// A thread's part of an operand of 16 rows x 16 columns: columns 2 (lane % 4) and the next, of rows
// lane / 4 and 8 below; then the same of the next eight columns.
template <class Element>
using Fragment = cutlass::Array<Element, 8>;

// sums[16 x 8] += a[16 x 16] b[8 x 16]^T, by instructions that multiply `Depth` values along k.
template <int Depth, class Element>
CUTLASS_DEVICE void MultiplyBlock(cutlass::Array<float, 4>& sums, const Fragment<Element>& a,
                                  const cutlass::Array<Element, 4>& b) {
  using Instruction =
      cutlass::arch::Mma<cutlass::gemm::GemmShape<16, 8, Depth>, 32, Element,
                         cutlass::layout::RowMajor, Element, cutlass::layout::ColumnMajor, float,
                         cutlass::layout::RowMajor, cutlass::arch::OpMultiplyAdd>;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 16 / Depth; ++i) {
    Instruction{}(sums, reinterpret_cast<const typename Instruction::FragmentA*>(&a)[i],
                  reinterpret_cast<const typename Instruction::FragmentB*>(&b)[i], sums);
  }
}

// Loads 16 x 16 elements of a matrix in shared memory, `at` being the first: the thread's two of
// each quarter.
template <class Element>
CUTLASS_DEVICE cutlass::Array<unsigned, 4> LoadMatrices(const Element* at, int pitch, int row,
                                                        int column) {
  cutlass::Array<unsigned, 4> quarters;
  cutlass::arch::ldsm<cutlass::layout::RowMajor, 4>(quarters, at + row * pitch + column);
  return quarters;
}

// An inner layer's result, rounded to the element type, as operand of the next product.
template <class K, int L>
class Result {
 public:
  using Element = typename K::Element;
  using Chain = typename K::template ChainOf<L>;
  static constexpr int kColumns = K::columns(L), kWarpColumns = K::warp_columns(L),
                       kPitch = K::pitch(kColumns);

  CUTLASS_DEVICE Result(const ChainArguments& chain, Memory<K> memory)
      : memory_(memory), params_(chain.epilogue[L].params) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    first_row_ = warp % K::kWarpsAlong * K::kWarpRows;
    first_column_ = warp / K::kWarpsAlong * kWarpColumns;
    row_ = lane / 4, column_ = lane % 4 * 2;
  }

  // Results go through shared memory: waits until no warp reads it.
  CUTLASS_DEVICE void finish(const typename K::template Sums<L>& sums) {
    if constexpr (!K::kInRegisters) __syncthreads();
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < kWarpColumns / 16; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int m = 0; m < K::kRowBlocks; ++m) {
        const auto fragment = finish_block(sums, block, m);
        if constexpr (K::kInRegisters)
          fragments_[block][m] = fragment;
        else
          store(fragment, block, m);
      }
    }
    if constexpr (!K::kInRegisters) __syncthreads();
  }

  // Stores rows 16 m to 16 m + 15 of the warp, 16 columns of all warps.
  CUTLASS_DEVICE Fragment<Element> read(int block, int m) const {
    if constexpr (K::kInRegisters) {
      return fragments_[block][m];
    } else {
      const int lane = threadIdx.x % 32;
      const auto words = LoadMatrices(memory_.intermediate(), kPitch,
                                      first_row_ + 16 * m + lane % 16, 16 * block + lane / 16 * 8);
      return reinterpret_cast<const Fragment<Element>&>(words);
    }
  }

 private:
  CUTLASS_DEVICE Fragment<Element> finish_block(const typename K::template Sums<L>& sums, int block,
                                                int m) const {
    cutlass::Array<float, 8> x;
    typename Chain::template Operands<8> operands;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = sums[4 * ((2 * block + i / 4) * K::kRowBlocks + m) + i % 4];
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < Chain::kVectors; ++v) {
      const float* vector =
          memory_.template vectors<L>() + v * kColumns + first_column_ + 16 * block + column_;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 8; i += 4) {
        const float2 pair = *reinterpret_cast<const float2*>(vector + 2 * i);
        operands.vectors[v][i] = operands.vectors[v][i + 2] = pair.x;
        operands.vectors[v][i + 1] = operands.vectors[v][i + 3] = pair.y;
      }
    }
    return Chain::template finish<Element>(x, operands, params_);
  }

  CUTLASS_DEVICE void store(const Fragment<Element>& fragment, int block, int m) const {
    Element* to = memory_.intermediate() + (first_row_ + 16 * m + row_) * kPitch + first_column_ +
                  16 * block + column_;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<unsigned*>(to + i % 2 * 8 * kPitch + i / 2 * 8) =
          reinterpret_cast<const unsigned*>(&fragment)[i];
  }

  Fragment<Element> fragments_[K::kInRegisters ? kWarpColumns / 16 : 1][K::kRowBlocks];
  Memory<K> memory_;
  const float* params_;
  int first_row_, first_column_, row_, column_;
};

// Computes layer L's product from the result of the layer before it.
template <class K, int L>
CUTLASS_DEVICE void Multiply(const Result<K, L - 1>& operand, Memory<K> memory,
                             typename K::template Sums<L>& sums) {
  using Element = typename K::Element;
  constexpr int kPitch = K::pitch(K::depth(L)), kRowBlocks = K::kRowBlocks;
  const int lane = threadIdx.x % 32,
            first_column = threadIdx.x / 32 / K::kWarpsAlong * K::warp_columns(L);
  const Element* weights = memory.template weights<L>() + first_column * kPitch;
  auto* blocks = reinterpret_cast<cutlass::Array<float, 4>*>(&sums);
  sums.clear();
  CUTLASS_PRAGMA_UNROLL
  for (int k = 0; k < K::depth(L) / 16; ++k) {
    Fragment<Element> a[kRowBlocks];
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) a[m] = operand.read(k, m);
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < K::warp_columns(L) / 16; ++n) {
      const auto words = LoadMatrices(weights, kPitch, 16 * n + lane / 16 * 8 + lane % 8,
                                      16 * k + lane / 8 % 2 * 8);
      const auto* b = reinterpret_cast<const cutlass::Array<Element, 4>*>(&words);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * kRowBlocks; ++i) {
        const int m = i % kRowBlocks, half = i / kRowBlocks;  // a half of 16 columns
        MultiplyBlock<ArchOf<typename K::Row>::kMmaDepth>(blocks[(2 * n + half) * kRowBlocks + m],
                                                          a[m], b[half]);
      }
    }
  }
}

}  // namespace b2b_2x
}  // namespace onnxbolt
