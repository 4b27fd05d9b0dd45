// The CUTLASS 2.x types that a configuration row names, for GEMM and implicit GEMM alike.
#pragma once
#include "cutlass/arch/arch.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "mma/visitor.h"
#include "runtime/instance.h"

namespace onnxbolt {

template <class Row, class Element, class Output, class Chain,
          epilogue::Batches kBatches = epilogue::Batches::kChannels>
struct Tile2x {
  // CUTLASS's kernels for sm_80 serve every architecture with cp.async.
  using Arch = cutlass::platform::conditional_t<ArchOf<Row>::kCpAsync, cutlass::arch::Sm80,
                                                cutlass::arch::Sm75>;
  using Threadblock = cutlass::gemm::GemmShape<Row::at(kTileM), Row::at(kTileN), Row::at(kTileK)>;
  using Warp = cutlass::gemm::GemmShape<Row::at(kWarpM), Row::at(kWarpN), Row::at(kWarpK)>;
  using Instruction = cutlass::gemm::GemmShape<Row::at(kInstructionM), Row::at(kInstructionN),
                                               Row::at(kInstructionK)>;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<Row::at(kSwizzle)>;

  static_assert(ArchOf<Row>::kCpAsync || Row::at(kStages) == 2, "without cp.async: two stages");
  static_assert(ArchOf<Row>::kTf32 || sizeof(Element) == 2, "the SM multiplies no TF32");
  static_assert(Row::at(kStages) == 2 || Row::at(kAlignA) * sizeof(Element) >= 4,
                "cp.async copies at least 4 bytes");
  static_assert(Row::at(kStages) == 2 || Row::at(kAlignB) * sizeof(Element) >= 4,
                "cp.async copies at least 4 bytes");

  // A warp of the epilogue covers 8 rows, so it needs 4 accesses to a row: for fewer, CUTLASS's
  // layout of threads over the tile is wrong.
  static constexpr int kAccess =
      Row::at(kAlignC) < Threadblock::kN / 4 ? Row::at(kAlignC) : Threadblock::kN / 4;

  // Never called: it only tells CUTLASS the element and the width of an access.
  using OutputOp = cutlass::epilogue::thread::LinearCombination<Element, kAccess, float, float>;

  using ThreadMap = cutlass::epilogue::threadblock::OutputTileThreadLayout<Threadblock, Warp,
                                                                           Element, kAccess, 1>;
  using Visitor = epilogue::ChainVisitor<ThreadMap, Chain, Element, Output, kBatches>;

  // CUTLASS's epilogue with our visitor in place of its output operator. Long steps are not
  // unrolled: one copy for each step of the tile would not fit the instruction cache.
  template <class Default>
  using Epilogue = cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks<Default, Visitor, 1,
                                                                                !Chain::kHeavy>;
};

}  // namespace onnxbolt
