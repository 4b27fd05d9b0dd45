// A block's part of a product of few rows: some columns of D, and the steps along k that its warps
// have.
#pragma once
#include "cutlass/numeric_conversion.h"
#include "epilogue/chain.h"
#include "mma/instructions.h"
#include "ops/gemm/arguments.h"
#include "runtime/cluster.h"
#include "runtime/dependent_launch.h"
#include "runtime/integers.h"

namespace onnxbolt {
namespace gemm_skinny {

// GemmSkinnyConfig in onnxbolt/families/gemm_skinny/.
template <class Config, class ElementType, class OutputType, class ChainType>
struct Shape {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;
  static constexpr int kRows = Row::at(kTileM);     // rows of A that a block has
  static constexpr int kColumns = Row::at(kTileN);  // columns of the product
  static constexpr int kDepth = Row::at(kInstructionK);
  static constexpr int kSteps = Row::at(kStages);  // loads of so many are under way
  static constexpr int kWarps = Row::at(kConsumers);
  static constexpr int kWidth = Row::at(kAlignA);  // elements of an access to A and B
  static constexpr int kPart = Row::at(kAlignC);   // and of one to D

  static constexpr int kThreads = kWarps * mma::kWarp;
  static constexpr int kOfUnit = mma::kUnit / int(sizeof(Element));
  static constexpr int kOfStep = 4 * kOfUnit;  // elements of a row in one step
  static constexpr int kRowTiles = kRows / 8, kColumnTiles = kColumns / 8;
  static constexpr int kResults = kColumns / Chain::kFold;  // columns of D
  static constexpr int kBytes = kWarps * kRows * kColumns * int(sizeof(float));

  static_assert(kRows == 8 || kRows == 16, "one instruction has all rows");
  static_assert(kColumns % (8 * Chain::kFold) == 0, "columns are whole tiles, with their gates");
  static_assert(kResults % kPart == 0 && kPart <= 8, "columns are whole accesses");
};

struct Params : GemmArguments {
  int steps;         // along k
  int column_tiles;  // blocks, or clusters, that D's columns take
  int split;         // blocks of a cluster, which share k

  Params(const GemmArguments& gemm, int of_step, int results, int split)
      : GemmArguments(gemm),
        steps(static_cast<int>(CeilDivide(gemm.k, int64_t{of_step}))),
        column_tiles(static_cast<int>(CeilDivide(gemm.n, int64_t{results}))),
        split(split) {}
};

// N values in one access of at most 16 bytes at a time.
template <class T, int N>
using Access = cutlass::AlignedArray<T, N, (N * sizeof(T) < 16 ? N * sizeof(T) : 16)>;

template <class S>
class Block {
  using Element = typename S::Element;
  using Output = typename S::Output;
  using Chain = typename S::Chain;
  using Unit = cutlass::AlignedArray<Element, S::kOfUnit>;
  template <int Tiles>
  using Units = Unit[S::kSteps][Tiles];
  using Sums = cutlass::Array<float, S::kPart>[Chain::kFold];

 public:
  __device__ Block(const Params& params, float* memory)
      : params_(params),
        memory_(memory),
        warp_(threadIdx.x / mma::kWarp),
        lane_(threadIdx.x % mma::kWarp) {
    const int64_t tile = blockIdx.x / params.split;
    row_ = tile / params.column_tiles * S::kRows;
    column_ = tile % params.column_tiles * S::kColumns;
  }

  // The warps take turns with so many steps as they load at a time. Weights do not depend on the
  // kernel before this one.
  __device__ void multiply() {
    const int rank = params_.split > 1 ? ClusterRank() : 0;
    const int stride = params_.split * S::kWarps * S::kSteps;
    int step = (rank * S::kWarps + warp_) * S::kSteps;
    Units<S::kColumnTiles> weights;
    load(weights, params_.b, params_.ldb, column_, params_.n * Chain::kFold, step);
    WaitForPredecessors();
    for (; step < params_.steps; step += stride) {
      Units<S::kRowTiles> rows;
      load(rows, params_.a, params_.lda, row_, params_.m, step);
      add_products(rows, weights);
      load(weights, params_.b, params_.ldb, column_, params_.n * Chain::kFold, step + stride);
    }
  }

  // Adds up the warps' sums, then those of the cluster's blocks, each in their order.
  __device__ void finish() {
    share();
    __syncthreads();
    for (int item = threadIdx.x; item < kItems; item += S::kThreads) {
      Sums total;
      each(total, [&](float& sum, int h, int i) {
        sum = 0;
        for (int warp = 0; warp < S::kWarps; ++warp) sum += *at(warp, item, h, i);
      });
      if (params_.split == 1) {
        store(total, item);
      } else {  // in place of what this thread alone has read
        each(total, [&](float& sum, int h, int i) { *at(0, item, h, i) = sum; });
      }
    }
    if (params_.split > 1) combine();
  }

 private:
  static constexpr int kAcross = S::kResults / S::kPart;  // accesses of a row of D
  static constexpr int kItems = S::kRows * kAcross;

  // A step's unit of 16 bytes of each row: lane i has that of row i / 4. Zeros beyond k and beyond
  // the last row.
  template <int Tiles>
  __device__ void load(Units<Tiles>& to, const void* matrix, int64_t pitch, int64_t first,
                       int64_t rows, int step) const {
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      const int64_t row = first + 8 * t + lane_ / 4;
      const int end = row < rows ? static_cast<int>(params_.k) : 0;
      const Element* const from = static_cast<const Element*>(matrix) + row * pitch;
      CUTLASS_PRAGMA_UNROLL
      for (int s = 0; s < S::kSteps; ++s) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < S::kOfUnit / S::kWidth; ++i) {
          using Part = cutlass::AlignedArray<Element, S::kWidth>;
          const int k = (step + s) * S::kOfStep + lane_ % 4 * S::kOfUnit + i * S::kWidth;
          Part& part = reinterpret_cast<Part*>(&to[s][t])[i];
          part.clear();
          if (k < end) part = *reinterpret_cast<const Part*>(from + k);
        }
      }
    }
  }

  // A unit has a lane's fragments of two instructions' operands, or of four on sm_75: which k an
  // instruction multiplies does not matter, if A and B agree.
  __device__ void add_products(const Units<S::kRowTiles>& rows,
                               const Units<S::kColumnTiles>& weights) {
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < S::kSteps; ++s) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint32_t a[4] = {};
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 2 * S::kRowTiles; ++i)
          a[i / S::kRowTiles * 2 + i % S::kRowTiles] =
              word(rows[s][i % S::kRowTiles], 2 * half + i / S::kRowTiles);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < S::kColumnTiles; ++t)
          mma::Multiply<Element, S::kDepth>(sums_[t], a, word(weights[s][t], 2 * half),
                                            word(weights[s][t], 2 * half + 1));
      }
    }
  }

  // Four bytes of a unit, as the tensor cores take them.
  __device__ static uint32_t word(const Unit& unit, int index) {
    const uint32_t found = reinterpret_cast<const uint32_t*>(&unit)[index];
    return sizeof(Element) == 4 ? mma::RoundToTf32(found) : found;
  }

  // Puts the warp's sums into shared memory.
  __device__ void share() {
    float* const mine = memory_ + warp_ * S::kRows * S::kColumns;
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < S::kColumnTiles; ++t) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < S::kRowTiles; ++r)
        *reinterpret_cast<float2*>(mine + (8 * r + lane_ / 4) * S::kColumns + 8 * t +
                                   lane_ % 4 * 2) = {sums_[t][2 * r], sums_[t][2 * r + 1]};
    }
  }

  // A warp's sum for the i-th result of an item; with h = 1 that of its gate, which lies 8 columns
  // behind.
  __device__ float* at(int warp, int item, int h, int i) const {
    const int result = item % kAcross * S::kPart + i;
    const int column = result / 8 * 8 * Chain::kFold + result % 8 + 8 * h;
    return memory_ + (warp * S::kRows + item / kAcross) * S::kColumns + column;
  }

  template <class Visit>
  __device__ static void each(Sums& sums, Visit visit) {
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < Chain::kFold; ++h) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < S::kPart; ++i) visit(sums[h][i], h, i);
    }
  }

  // Each block finishes some items with the sums of all.
  __device__ void combine() {
    ArriveAtCluster();
    WaitForCluster();
    for (int item = threadIdx.x * params_.split + ClusterRank(); item < kItems;
         item += S::kThreads * params_.split) {
      Sums total;
      each(total, [&](float& sum, int h, int i) {
        sum = 0;
        for (int rank = 0; rank < params_.split; ++rank)
          sum += LoadFromBlock(at(0, item, h, i), rank);
      });
      store(total, item);
    }
    ArriveAtCluster();  // the others may still read this block's sums: it must not end before
    WaitForCluster();
  }

  __device__ void store(const Sums& total, int item) const {
    const int64_t row = row_ + item / kAcross;
    const int64_t column = column_ / Chain::kFold + item % kAcross * S::kPart;
    if (row >= params_.m || column >= params_.n) return;
    const auto& epilogue = params_.epilogue;
    auto operands = [&] {
      using Operands = typename Chain::template Operands<S::kPart>;
      if constexpr (Chain::kGated) {
        return Operands(total[1]);
      } else {
        return Operands();
      }
    }();
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < Chain::kVectors; ++v)
      operands.vectors[v] =
          *reinterpret_cast<const Access<float, S::kPart>*>(epilogue.vectors[v] + column);
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < Chain::kTensors; ++t) {
      const Element* from =
          static_cast<const Element*>(epilogue.tensors[t]) + row * epilogue.tensor_pitch[t];
      operands.tensors[t] = cutlass::NumericArrayConverter<float, Element, S::kPart>{}(
          *reinterpret_cast<const Access<Element, S::kPart>*>(from + column));
    }
    Access<Output, S::kPart> values;
    static_cast<cutlass::Array<Output, S::kPart>&>(values) =
        Chain::template finish<Output>(total[0], operands, epilogue.params);
    Output* const to = static_cast<Output*>(params_.d) + row * params_.ldd + column;
    *reinterpret_cast<Access<Output, S::kPart>*>(to) = values;
  }

  const Params& params_;
  float* const memory_;  // kWarps x kRows x kColumns sums
  const int warp_, lane_;
  int64_t row_, column_;  // the block's first ones, of A and of the product
  float sums_[S::kColumnTiles][4] = {};
};

}  // namespace gemm_skinny
}  // namespace onnxbolt
