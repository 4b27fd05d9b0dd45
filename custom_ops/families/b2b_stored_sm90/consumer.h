// A consumer warpgroup of a chain whose first result is stored: tiles of 64 rows of its own.
#pragma once
#include "sm90/b2b/next_product.h"
#include "families/b2b_stored_sm90/shape.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
class StoredConsumer {
 public:
  using Element = typename K::Element;

  CUTLASS_DEVICE StoredConsumer(const StoredParams& params, StoredMemory<K> memory, int group)
      : params_(params),
        memory_(memory),
        barriers_(memory.barriers()),
        group_(group),
        thread_(threadIdx.x % 128),
        store_(memory.store(group), params.operands[0], 1 + group),
        finish_(memory.finish(group), params.operands[1], 1 + group) {}

  CUTLASS_DEVICE void run() {
    store_.fetch_vectors(0, params_.columns[0]);
    finish_.fetch_vectors(0, params_.columns[1]);
    store_.keep_vectors();
    finish_.keep_vectors();
    WaitForPredecessors();  // the kernel before may read the memory where this thread stores its
                            // tiles
    for (int round = 0; round < params_.rounds; ++round, rows_.advance()) {
      const int row = FirstRow<K>(round, group_);
      Accumulators<K::kColumns> sums;
      multiply_tile(sums, {params_.stored, row, 0, params_.row_count});
      finish_tile(sums, {params_.d, row, 0, params_.row_count});
    }
    finish_.drain();  // waits for stores of both results: a thread's stores are in one order
  }

 private:
  // The second product of a block runs under the first one of the next. Weights are given back
  // behind both.
  CUTLASS_DEVICE void multiply_tile(Accumulators<K::kColumns>& sums, const MatrixOutput& to) {
    Operand<K::kBlockColumns> operand;
    barriers_.rows_full[group_][rows_.stage].wait(rows_.parity);
    int previous = 0;
#pragma unroll 1
    for (int block = 0; block < K::kBlocks; ++block) {
      barriers_.weights_full[weights_.stage].wait(weights_.parity);
      Accumulators<K::kBlockColumns> inner;
      multiply_rows(inner);
      WaitForProducts<0>();
      PinAccumulators(inner);
      PinAccumulators(sums);
      if (block > 0) release(barriers_.weights_empty[previous]);
      if (block + 1 == K::kBlocks) release(barriers_.rows_empty[group_][rows_.stage]);
      store_.finish_unit(inner, 0, block * K::kBlockColumns, params_.columns[0], to, operand);
      multiply_block(operand, sums, block > 0);
      previous = weights_.stage;
      advance_weights();
    }
    WaitForProducts<0>();
    PinAccumulators(sums);
    release(barriers_.weights_empty[previous]);
  }

  CUTLASS_DEVICE void multiply_rows(Accumulators<K::kBlockColumns>& inner) const {
    constexpr int kBoxRowBytes = K::kBox * sizeof(Element);
    const uint64_t a = OperandDescriptor(memory_.rows(group_, rows_.stage), kBoxRowBytes);
    const uint64_t b = OperandDescriptor(memory_.weights(weights_.stage), kBoxRowBytes);
    PinAccumulators(inner);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < K::kDepth / 16; ++k) {  // addresses in descriptors count 16 bytes
      const int at = 16 * k / K::kBox * (K::kBoxBytes / 16) + 2 * (k % (K::kBox / 16));
      Wgmma<K::kBlockColumns>::template multiply<Element>(inner, a + at, b + at, k > 0);
    }
    CommitProducts();
  }

  CUTLASS_DEVICE void multiply_block(Operand<K::kBlockColumns>& operand,
                                     Accumulators<K::kColumns>& sums, bool accumulate) const {
    const uint64_t b = OperandDescriptor(memory_.next_weights(weights_.stage), K::kNextRowBytes);
    PinOperand(operand);
    PinAccumulators(sums);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < K::kBlockColumns / 16; ++k)
      WgmmaFromRegisters<K::kColumns>::template multiply<Element>(sums, operand + 4 * k, b + 2 * k,
                                                                  accumulate || k > 0);
    CommitProducts();
  }

  CUTLASS_DEVICE void finish_tile(const Accumulators<K::kColumns>& sums, const MatrixOutput& to) {
    using Finish = typename K::Finish;
    constexpr int kValues = Finish::kUnitColumns / 2;
#pragma unroll
    for (int unit = 0; unit < Finish::kUnits; ++unit)
      finish_.finish_unit(reinterpret_cast<const float (&)[kValues]>(sums[unit * kValues]), 0,
                          unit * Finish::kUnitColumns, params_.columns[1], to);
  }

  // The one phase of resident weights stays complete.
  CUTLASS_DEVICE void advance_weights() {
    weights_.advance();
    if constexpr (K::kIsResident) weights_.parity = 0;
  }

  CUTLASS_DEVICE void release(Barrier& empty) const {
    if (thread_ == 0) empty.arrive();
  }

  const StoredParams& params_;
  StoredMemory<K> memory_;
  typename K::Barriers& barriers_;
  int group_, thread_;
  RingCursor<K::kStages> rows_;
  RingCursor<K::kWeightStages> weights_;
  Epilogue<typename K::Store> store_;
  Epilogue<typename K::Finish> finish_;
};

}  // namespace sm90
}  // namespace onnxbolt
