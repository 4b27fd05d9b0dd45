// A consumer warpgroup of a chain: the first product from shared memory, the others from the registers that the one before left.
#pragma once
#include "chain/next_product.h"
#include "chain/shape.h"
#include "dependent_launch.h"
#include "sm90/epilogue.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
class ChainConsumer {
 public:
  using Element = typename K::Element;
  using Finish = typename K::Finish;

  CUTLASS_DEVICE ChainConsumer(const ChainParams& params, ChainMemory<K> memory, int group)
      : params_(params), memory_(memory), barriers_(memory.barriers()), group_(group), ring_(K::kIsResident ? group : 0),
        thread_(threadIdx.x % 128), epilogue_(memory.epilogue(group), params.operands[K::kLast], 1 + group) {}

  CUTLASS_DEVICE void run() {
    WaitForPredecessors();  // what the kernel before reads may lie where this thread's tiles are stored
    epilogue_.load_vectors(0, params_.columns[K::kLast]);
    bool first = true;
    for (ChainTiles<K> tiles(ring_); tiles.first < params_.tiles; tiles.first += tiles.step, first = false) {
      Accumulators<K::columns(0)> sums;
      multiply_tile(sums, first);
      continue_from<0>(sums, tiles.first * K::kStageRows + (group_ - ring_) * 64, first);
    }
    epilogue_.drain();
  }

 private:
  // The first layer's main loop. A stage is given back when the products behind its own are under way.
  CUTLASS_DEVICE void multiply_tile(Accumulators<K::columns(0)>& sums, bool first) {
    if (K::kIsResident && first) barriers_.weights[0].wait(0);
    constexpr int kBoxes = K::boxes(0);
    int previous = 0;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box, cursor_.advance()) {
      barriers_.full[ring_][cursor_.stage].wait(cursor_.parity);
      PinAccumulators(sums);
      BeginProducts();
      multiply_box(sums, box);
      CommitProducts();
      if (box > 0) {
        WaitForProducts<1>();
        release(previous);
      }
      previous = cursor_.stage;
    }
    WaitForProducts<0>();
    PinAccumulators(sums);
    release(previous);
  }

  CUTLASS_DEVICE void multiply_box(Accumulators<K::columns(0)>& sums, int box) const {
    constexpr int kRowBytes = K::row_bytes(0), kColumns = K::columns(0), kBoxBytes = K::box_bytes(0);
    const char* stage = memory_.stage(ring_, cursor_.stage);
    const char* weights = K::kIsResident ? memory_.template weights<0>() + box * kBoxBytes : stage + K::kRowsBytes;
    const uint64_t a = OperandDescriptor(stage + (group_ - ring_) * 64 * kRowBytes, kRowBytes), b = OperandDescriptor(weights, kRowBytes);
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k)  // addresses in descriptors count 16 bytes
      Wgmma<kColumns>::template multiply<Element>(sums, a + 2 * k, b + 2 * k, box + k > 0);
  }

  CUTLASS_DEVICE void release(int stage) {
    if (thread_ == 0) barriers_.empty[ring_][stage].arrive();
  }

  // The layers behind layer L, whose sums these are.
  template <int L>
  CUTLASS_DEVICE void continue_from(Accumulators<K::columns(L)>& sums, int row, bool first) {
    if constexpr (L == K::kLast) {
      store(sums, row);
    } else {
      Operand<K::columns(L)> operand;
      FinishAsOperand<typename K::template ChainOf<L>, Element, K::columns(L)>(sums, memory_.template vectors<L>(),
                                                                             params_.operands[L].params, operand);
      if (first) barriers_.weights[L + 1].wait(0);
      Accumulators<K::columns(L + 1)> next;
      MultiplyOperand<Element, K::columns(L), K::columns(L + 1)>(operand, memory_.template weights<L + 1>(), K::box_bytes(L + 1), next);
      continue_from<L + 1>(next, row, first);
    }
  }

  CUTLASS_DEVICE void store(const Accumulators<K::columns(K::kLast)>& sums, int row) {
    if (!params_.stores_by_tma) return store_directly(sums, row);
    constexpr int kValues = Finish::kUnitColumns / 2;
    const MatrixOutput to{params_.d, row, 0, params_.rows};
#pragma unroll
    for (int unit = 0; unit < Finish::kUnits; ++unit)
      epilogue_.finish_unit(reinterpret_cast<const float(&)[kValues]>(sums[unit * kValues]), 0, unit * Finish::kUnitColumns,
                            params_.columns[K::kLast], to);
  }

  // Rows that TMA cannot write are short ones.
  CUTLASS_DEVICE void store_directly(const Accumulators<K::columns(K::kLast)>& sums, int row) const {
    using Output = typename K::Output;
    constexpr int kBlocks = K::columns(K::kLast) / 16;
    const int first_row = row + thread_ / 32 * 16 + thread_ % 32 / 4, end = params_.columns[K::kLast];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const auto finished = FinishColumns<typename K::template ChainOf<K::kLast>, Output, K::columns(K::kLast)>(
          sums, block, memory_.template vectors<K::kLast>(), params_.operands[K::kLast].params);
      const auto values = cutlass::NumericArrayConverter<Output, float, 8>{}(finished);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = first_row + i % 4 / 2 * 8, column = 16 * block + i / 4 * 8 + thread_ % 4 * 2 + i % 2;
        if (at < params_.rows && column < end) static_cast<Output*>(params_.d_data)[at * params_.ldd + column] = values[i];
      }
    }
  }

  const ChainParams& params_;
  ChainMemory<K> memory_;
  typename K::Barriers& barriers_;
  int group_, ring_, thread_;
  RingCursor<K::kStages> cursor_;
  Epilogue<Finish> epilogue_;
};

}  // namespace sm90
}  // namespace onnxbolt
