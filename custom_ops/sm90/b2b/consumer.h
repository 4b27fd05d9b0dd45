// A consumer warpgroup of back-to-back GEMMs. It reads the first product's rows from shared memory,
// or, if TMA cannot read them, from registers; each further product's operand is the result that
// the one before left in registers.
#pragma once
#include "sm90/b2b/next_product.h"
#include "sm90/b2b/output.h"
#include "sm90/b2b/rows.h"
#include "sm90/b2b/shape.h"
#include "sm90/b2b/vectors.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace sm90 {

template <class K>
class ChainConsumer {
 public:
  using Element = typename K::Element;

  CUTLASS_DEVICE ChainConsumer(const ChainParams& params, ChainMemory<K> memory, int group)
      : params_(params),
        memory_(memory),
        barriers_(memory.barriers()),
        group_(group),
        ring_(K::kIsResident ? group : 0),
        thread_(threadIdx.x % 128),
        output_(params, memory.epilogue(group), 0, 1 + group) {}

  CUTLASS_DEVICE void run() {
    LoadVectors<K, 128 * K::kGroups>(params_, memory_, threadIdx.x - 128);
    SyncConsumers(K::kGroups);
    WaitForPredecessors();  // the kernel before may read the memory where this thread stores its
                            // tiles
    bool first = true;
    for (ChainTiles<K> tiles(ring_); tiles.first < params_.tiles;
         tiles.first += tiles.step, first = false) {
      Accumulators<K::columns(0)> sums;
      if (K::kIsResident && first) barriers_.weights[0].wait(0);
      if constexpr (K::kRowsByTma)
        multiply_tile(sums);
      else
        multiply_fragments(sums);
      continue_from<0>(sums, tiles.first * K::kStageRows + (group_ - ring_) * 64, first);
    }
    output_.drain();
  }

 private:
  // The first layer's main loop. A stage is given back once the products of the next stage are
  // under way.
  CUTLASS_DEVICE void multiply_tile(Accumulators<K::columns(0)>& sums) {
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
    constexpr int kRowBytes = K::row_bytes(0), kColumns = K::columns(0);
    const char* rows = memory_.stage(ring_, cursor_.stage) + (group_ - ring_) * 64 * kRowBytes;
    const uint64_t a = OperandDescriptor(rows, kRowBytes), b = first_weights(box);
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k)  // descriptors count addresses in units of 16 bytes
      Wgmma<kColumns>::template multiply<Element>(sums, a + 2 * k, b + 2 * k, box + k > 0);
  }

  CUTLASS_DEVICE uint64_t first_weights(int box) const {
    constexpr int kBoxBytes = K::box_bytes(0);
    const char* resident = memory_.template weights<0>() + box * kBoxBytes;
    return OperandDescriptor(
        K::kIsResident ? resident : memory_.stage(ring_, cursor_.stage) + K::kRowsBytes,
        K::row_bytes(0));
  }

  // The same if TMA does not read the rows: while one box is multiplied, the next one is loaded
  // into registers.
  CUTLASS_DEVICE void multiply_fragments(Accumulators<K::columns(0)>& sums) {
    using Fragments = RowFragments<K>;
    constexpr int kBoxes = K::boxes(0);
    using Product = WgmmaFromRegisters<K::columns(0)>;
    const Fragments fragments(params_, (group_ - ring_) * 64);
    typename Fragments::Registers rows[2];
    read_box(fragments, rows[0]);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      Fragments::pin(rows[box % 2]);
      PinAccumulators(sums);
      BeginProducts();
#pragma unroll
      for (int step = 0; step < Fragments::kSteps; ++step)
        Product::template multiply<Element>(sums, rows[box % 2][step],
                                            first_weights(box) + 2 * step, box + step > 0);
      CommitProducts();
      const int multiplied = cursor_.stage;
      cursor_.advance();
      if (box + 1 < kBoxes) read_box(fragments, rows[(box + 1) % 2]);
      WaitForProducts<0>();
      Fragments::pin(rows[box % 2]);
      PinAccumulators(sums);
      release_as_warp(multiplied);
    }
  }

  CUTLASS_DEVICE void read_box(const RowFragments<K>& fragments,
                               typename RowFragments<K>::Registers& rows) {
    barriers_.full[ring_][cursor_.stage].wait(cursor_.parity);
    fragments.read(memory_.stage(ring_, cursor_.stage), rows);
  }

  CUTLASS_DEVICE void release(int stage) {
    if (thread_ == 0) barriers_.empty[ring_][stage].arrive();
  }

  // Each warp reports its own loads from a stage.
  CUTLASS_DEVICE void release_as_warp(int stage) {
    __syncwarp();
    if (thread_ % 32 == 0) barriers_.empty[ring_][stage].arrive();
  }

  // Runs the layers behind layer L, whose accumulators are given.
  template <int L>
  CUTLASS_DEVICE void continue_from(Accumulators<K::columns(L)>& sums, int row, bool first) {
    if constexpr (L == K::kLast) {
      output_.store(sums, row);
    } else {
      Operand<K::columns(L)> operand;
      FinishAsOperand<typename K::template ChainOf<L>, Element, K::columns(L)>(
          sums, memory_.template vectors<L>(), params_.operands[L].params, operand);
      if (first) barriers_.weights[L + 1].wait(0);
      Accumulators<K::columns(L + 1)> next;
      MultiplyOperand<Element, K::columns(L), K::columns(L + 1)>(
          operand, memory_.template weights<L + 1>(), K::box_bytes(L + 1), next);
      continue_from<L + 1>(next, row, first);
    }
  }

  const ChainParams& params_;
  ChainMemory<K> memory_;
  typename K::Barriers& barriers_;
  int group_, ring_, thread_;
  RingCursor<K::kStages> cursor_;
  ChainOutput<K> output_;
};

}  // namespace sm90
}  // namespace onnxbolt
