// The last layer of back-to-back GEMMs: its epilogue on a warpgroup's accumulators, and its store,
// by TMA if rows are multiples of 16 bytes.
#pragma once
#include "sm90/b2b/next_product.h"
#include "sm90/b2b/shape.h"
#include "sm90/epilogue.h"

namespace onnxbolt {
namespace sm90 {

// All threads of the warpgroup make every call. `K`: the kernel's constants; its `Finish` has the
// warpgroup's columns.
template <class K>
class ChainOutput {
 public:
  using Element = typename K::Element;
  using Finish = typename K::Finish;
  static constexpr int kColumns = Finish::kColumns;

  // `memory` has the last layer's vectors from `first_column` on; `barrier`: a hardware barrier of
  // this warpgroup's own.
  CUTLASS_DEVICE ChainOutput(const ChainParams& params, const EpilogueMemory<Finish>& memory,
                             int first_column, int barrier)
      : params_(params),
        vectors_(memory.vectors),
        first_column_(first_column),
        thread_(threadIdx.x % 128),
        epilogue_(memory, params.operands[K::kLast], barrier) {}

  CUTLASS_DEVICE void store(const Accumulators<kColumns>& sums, int row) {
    if (!params_.stores_by_tma) return store_directly(sums, row);
    constexpr int kValues = Finish::kUnitColumns / 2;
    const MatrixOutput to{params_.d, row, first_column_, params_.rows};
#pragma unroll
    for (int unit = 0; unit < Finish::kUnits; ++unit)
      epilogue_.finish_unit(reinterpret_cast<const float (&)[kValues]>(sums[unit * kValues]), 0,
                            unit * Finish::kUnitColumns, params_.columns[K::kLast], to);
  }

  // Waits until stores have read shared memory.
  CUTLASS_DEVICE void drain() { epilogue_.drain(); }

 private:
  using Chain = typename Finish::Chain;

  // Rows that TMA cannot write are short: threads store them.
  CUTLASS_DEVICE void store_directly(const Accumulators<kColumns>& sums, int row) const {
    using Output = typename K::Output;
    const int first_row = row + thread_ / 32 * 16 + thread_ % 32 / 4,
              end = params_.columns[K::kLast];
#pragma unroll
    for (int block = 0; block < kColumns / 16; ++block) {
      const int first = first_column_ + 16 * block;
      const auto values = FinishColumns<Chain, Output, kColumns>(
          sums, block, vectors_, params_.operands[K::kLast].params, read_tensors(first_row, first));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = first_row + i % 4 / 2 * 8,
                  column = first + i / 4 * 8 + thread_ % 4 * 2 + i % 2;
        if (at < params_.rows && column < end)
          static_cast<Output*>(params_.d_data)[at * params_.ldd + column] = values[i];
      }
    }
  }

  // The values of the last layer's tensors at the places of eight of this thread's values.
  CUTLASS_DEVICE typename Chain::template Operands<8> read_tensors(int first_row,
                                                                   int first_column) const {
    typename Chain::template Operands<8> operands{};
    const EpilogueArguments& arguments = params_.operands[K::kLast];
#pragma unroll
    for (int t = 0; t < Chain::kTensors; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = first_row + i % 4 / 2 * 8,
                  column = first_column + i / 4 * 8 + thread_ % 4 * 2 + i % 2;
        const auto* tensor =
            static_cast<const Element*>(arguments.tensors[t]) + at * arguments.tensor_pitch[t];
        operands.tensors[t][i] =
            at < params_.rows && column < params_.columns[K::kLast] ? float(tensor[column]) : 0.f;
      }
    }
    return operands;
  }

  const ChainParams& params_;
  const float* vectors_;
  int first_column_, thread_;
  Epilogue<Finish> epilogue_;
};

}  // namespace sm90
}  // namespace onnxbolt
