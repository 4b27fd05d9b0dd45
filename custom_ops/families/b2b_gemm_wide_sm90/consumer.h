// A consumer warpgroup of a chain of wide layers: 64 rows, of which it has all columns or its
// share.
#pragma once
#include "sm90/b2b/output.h"
#include "sm90/b2b/rows.h"
#include "families/b2b_gemm_wide_sm90/shape.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace sm90 {

// Writes 64 rows x 16 columns of a warpgroup's activations into their box, as stmatrix has its four
// words of a thread.
CUTLASS_DEVICE void StoreActivations(char* activations, int column, const uint32_t (&words)[4]) {
  const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 16;
  const int chunk = column % kActivationColumns / 8 + thread % 32 / 16;
  const char* at = activations + column / kActivationColumns * kActivationBoxBytes +
                   row * kActivationRowBytes + (chunk ^ row % 8) * 16;
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(at)),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

template <class K>
class WideConsumer {
 public:
  using Element = typename K::Element;

  CUTLASS_DEVICE WideConsumer(const ChainParams& params, WideMemory<K> memory, int group)
      : params_(params),
        memory_(memory),
        barriers_(memory.barriers()),
        row_group_(group / K::kShares),
        share_(group % K::kShares),
        thread_(threadIdx.x % 128),
        activations_(memory.activations(row_group_)),
        output_(params, memory.epilogue(row_group_, share_), share_ * K::block(K::kLast),
                1 + group) {}

  CUTLASS_DEVICE void run() {
    WaitForPredecessors();  // the kernel before may read the memory where this thread stores its
                            // tiles
    for (int tile = blockIdx.x; tile < params_.tiles; tile += gridDim.x) {
      row_ = tile * K::kStageRows + row_group_ * 64;
      compute<0>();
    }
    output_.drain();
  }

 private:
  static constexpr int kLast = K::kLast;

  // Layer L and those behind it.
  template <int L>
  CUTLASS_DEVICE void compute() {
    for (int pass = 0; pass < K::passes(L); ++pass) {
      Accumulators<K::block(L)> sums;
      if constexpr (L == 0 && !K::kRowsByTma)
        multiply_fragments(sums);
      else
        multiply<L>(sums);
      if (pass == 0) acquire_activations<L>();
      if constexpr (L == kLast)
        output_.store(sums, row_);
      else
        activate<L>(sums, pass);
    }
    if constexpr (L < kLast) {
      FenceAsyncProxy();
      synchronize();
      compute<L + 1>();
    }
  }

  // Until layer L may write where activations are: what was there has been read by all, or, of the
  // tile before, stored.
  template <int L>
  CUTLASS_DEVICE void acquire_activations() {
    if constexpr (L == 0) output_.drain();
    synchronize();
  }

  // Waits for all warpgroups that share the rows.
  CUTLASS_DEVICE void synchronize() const {
    SyncThreads(1 + K::kGroups + row_group_, K::kShares * 128);
  }

  // Products of a block of layer L's columns. A stage is given back when the products behind its
  // own are under way.
  template <int L>
  CUTLASS_DEVICE void multiply(Accumulators<K::block(L)>& sums) {
    constexpr int kBoxes = K::boxes(L);
    int previous = 0, previous_rows = 0;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if constexpr (L == 0) barriers_.rows_full[rows_.stage].wait(rows_.parity);
      barriers_.full[weights_.stage].wait(weights_.parity);
      PinAccumulators(sums);
      BeginProducts();
      multiply_box<L>(sums, box);
      CommitProducts();
      if (box > 0) {
        WaitForProducts<1>();
        release<L>(previous, previous_rows);
      }
      previous = weights_.stage, previous_rows = rows_.stage;
      weights_.advance();
      if constexpr (L == 0) rows_.advance();
    }
    WaitForProducts<0>();
    PinAccumulators(sums);
    release<L>(previous, previous_rows);
  }

  template <int L>
  CUTLASS_DEVICE void multiply_box(Accumulators<K::block(L)>& sums, int box) const {
    constexpr int kBlock = K::block(L), kRowBytes = K::row_bytes(L);
    const uint64_t a =
        L == 0
            ? OperandDescriptor(memory_.rows(rows_.stage) + row_group_ * 64 * kRowBytes, kRowBytes)
            : OperandDescriptor(activations_at(box * kRowBytes), kActivationRowBytes);
    const uint64_t b = weights_at<L>();
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k)  // addresses in descriptors count 16 bytes
      Wgmma<kBlock>::template multiply<Element>(sums, a + 2 * k, b + 2 * k, box + k > 0);
  }

  // From `bytes` of a row on.
  CUTLASS_DEVICE const char* activations_at(int bytes) const {
    return activations_ + bytes / kActivationRowBytes * kActivationBoxBytes +
           bytes % kActivationRowBytes;
  }

  template <int L>
  CUTLASS_DEVICE uint64_t weights_at() const {
    constexpr int kBytes = K::box_bytes(L), kRowBytes = K::row_bytes(L);
    return OperandDescriptor(memory_.weights(weights_.stage) + share_ * kBytes, kRowBytes);
  }

  // The first layer's where TMA does not read the rows: while one box is multiplied, the next one
  // is on its way to registers.
  CUTLASS_DEVICE void multiply_fragments(Accumulators<K::block(0)>& sums) {
    using Fragments = RowFragments<K>;
    using Product = WgmmaFromRegisters<K::block(0)>;
    constexpr int kBoxes = K::boxes(0);
    const Fragments fragments(params_, row_group_ * 64);
    typename Fragments::Registers rows[2];
    read_rows(fragments, rows[0]);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      barriers_.full[weights_.stage].wait(weights_.parity);
      Fragments::pin(rows[box % 2]);
      PinAccumulators(sums);
      BeginProducts();
#pragma unroll
      for (int step = 0; step < Fragments::kSteps; ++step)
        Product::template multiply<Element>(sums, rows[box % 2][step], weights_at<0>() + 2 * step,
                                            box + step > 0);
      CommitProducts();
      if (box + 1 < kBoxes) read_rows(fragments, rows[(box + 1) % 2]);
      WaitForProducts<0>();
      Fragments::pin(rows[box % 2]);
      PinAccumulators(sums);
      if (thread_ == 0) barriers_.empty[weights_.stage].arrive();
      weights_.advance();
    }
  }

  // A warp's own loads from a stage are its to report.
  CUTLASS_DEVICE void read_rows(const RowFragments<K>& fragments,
                                typename RowFragments<K>::Registers& rows) {
    barriers_.rows_full[rows_.stage].wait(rows_.parity);
    fragments.read(memory_.rows(rows_.stage), rows);
    __syncwarp();
    if (thread_ % 32 == 0) barriers_.rows_empty[rows_.stage].arrive();
    rows_.advance();
  }

  template <int L>
  CUTLASS_DEVICE void release(int stage, int rows_stage) {
    if (thread_ != 0) return;
    barriers_.empty[stage].arrive();
    if constexpr (L == 0) barriers_.rows_empty[rows_stage].arrive();
  }

  // An inner layer's result, rounded to the element type, as the next product's operand.
  template <int L>
  CUTLASS_DEVICE void activate(const Accumulators<K::block(L)>& sums, int pass) const {
    using Chain = typename K::template ChainOf<L>;
    constexpr int kBlock = K::block(L), kVectors = K::vectors(L) * kBlock;
    const int block = pass * K::kShares + share_;
#pragma unroll
    for (int i = 0; i < kBlock / 16; ++i) {
      const auto finished = FinishColumns<Chain, Element, kBlock>(
          sums, i, memory_.template vectors<L>() + block * kVectors, params_.operands[L].params);
      StoreActivations(activations_, block * kBlock + 16 * i,
                       reinterpret_cast<const uint32_t (&)[4]>(finished));
    }
  }

  const ChainParams& params_;
  WideMemory<K> memory_;
  typename K::Barriers& barriers_;
  int row_group_, share_, thread_, row_ = 0;
  char* activations_;
  RingCursor<K::kStages> weights_;
  RingCursor<K::kRowStages> rows_;
  ChainOutput<K> output_;
};

}  // namespace sm90
}  // namespace onnxbolt
