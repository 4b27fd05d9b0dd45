// The constants of one kernel of attention on sm_90a, its parameters and its shared memory.
#pragma once
#include <cuda.h>

#include "epilogue/chain.h"
#include "epilogue/codes.h"
#include "ops/attention/arguments.h"
#include "runtime/instance.h"
#include "runtime/integers.h"
#include "sm90/barrier.h"
#include "sm90/divisor.h"

namespace onnxbolt {
namespace attention_sm90 {

using namespace sm90;

constexpr int kRows = 64;  // queries of a warpgroup
constexpr float kLog2E = 1.4426950408889634f;

// The kernels for a mask, by the numbers of MaskForm in onnxbolt/families/attention_sm90.
enum class MaskForm : int {
  kNone,
  kKeys,      // any mask whose values are the same for all queries
  kAdded,     // values of the operands' type that are added
  kAddedF32,  // values of fp32 that are added
  kBoolean    // kept or dropped keys
};

// How rows of `size` elements of `width` bytes lie in shared memory: boxes of swizzled rows.
// Elements beyond `size` are zeros.
struct Boxes {
  int columns, count, width;

  constexpr explicit Boxes(int size, int width = 2)
      : columns((size * width > 64   ? 128
                 : size * width > 32 ? 64
                                     : 32) /
                width),
        count(CeilDivide(size, columns)),
        width(width) {}

  constexpr int row_bytes() const { return columns * width; }
  constexpr int bytes(int rows) const { return rows * row_bytes() * count; }
};

// A work item: the queries of one head that a block has, 64 for each consumer warpgroup, and the
// blocks of keys that they read. Where a head has no queries left, the first warpgroups are idle:
// so these, whose turns come first, go on to the next item while the last ones finish this one.
struct Work {
  int batch, head;
  int row;            // the first query
  int idle;           // warpgroups without queries
  int mask;           // place of the mask's first value in its copy, in bytes
  int first, blocks;  // the first block of keys, and how many; 0: there are no items any more
};

// Parameters of a launch, the same for all blocks.
struct Params {
  CUtensorMap q, k, v, y;          // dimensions: elements of a head, positions, heads, batch
  Divisor groups, heads, batches;  // groups of a head's queries
  Divisor sharing;                 // heads that share keys
  int group_count, items, queries, keys;
  bool rotates;             // else a block would always have the same group of its heads' queries
  float scale, scale_log2;  // factors of scores, without and with log2(e)
  float excluded;           // the score of a key that a query does not read
  float empty;              // the answer for a row without any key
  ScoreMask mask;
  int64_t mask_bytes;      // from its first value to its last one
  bool copies_mask;        // an item's part of the mask is one piece of memory, which fits
  int first, last, shift;  // the band, as in AttentionArguments, with bounds that do not overflow
  bool all_blocks;         // blocks outside of the band are read, too: some row may have no key
  float codes[2];          // scale and zero point of a result of codes
};

// Output: the element type, or that of codes, which Chain's one step makes.
template <class Config, class ElementType, class OutputType, class ChainType>
struct Shape {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Chain = ChainType;

  static constexpr int kConsumers = Row::at(Column::kConsumers);
  // keys of a block, and of the last block if so many suffice for the remaining keys
  static constexpr int kKeys = Row::at(kTileN), kLastKeys = Row::at(kWarpN);
  static constexpr int kSize = Row::at(kTileK), kValueSize = Row::at(kInstructionN);
  static constexpr int kStages = Row::at(Column::kStages), kQueryStages = Row::at(kWarpK);
  static constexpr int kBlocksOfSm = Row::at(kWarpM);
  static constexpr bool kOverlaps = Row::at(Column::kResident) == 1;
  static constexpr bool kTakesTurns = Row::at(Column::kSchedule) == kPingpong;
  static constexpr MaskForm kMask = static_cast<MaskForm>(Row::at(kIterator));
  static constexpr bool kBand = Row::at(kInstructionK) == 1;

  // Scores before exp2: a mask is added to scaled scores; biases have been multiplied by log2(e)
  // before they are added; other scores are scaled within exp2's argument.
  static constexpr bool kHasBiases = kMask == MaskForm::kKeys,
                        kAdds = kMask == MaskForm::kAdded || kMask == MaskForm::kAddedF32;
  // A query may read none of a block's keys.
  static constexpr bool kExcludes = kMask != MaskForm::kNone || kBand;

  // Earlier sums are scaled only where scores have grown much. The test for it is worth its time if
  // a warpgroup has many sums, or no registers to spare.
  static constexpr bool kScalesSeldom =
      kValueSize > 64 || kHasBiases || (kConsumers == 4 && kLastKeys < kKeys);

  // arrivals of the producer for a block's keys: of each lane if lanes write biases
  static constexpr int kKeyArrivals = kHasBiases ? 32 : 1;
  // arrivals of a warpgroup that release a block's keys: of each thread, if these read biases
  static constexpr int kReleases = kHasBiases ? 128 : 1;

  // bytes of a value of a mask that differs among queries
  static constexpr int kMaskValue = kMask == MaskForm::kAddedF32  ? 4
                                    : kMask == MaskForm::kAdded   ? 2
                                    : kMask == MaskForm::kBoolean ? 1
                                                                  : 0;
  // an item's part of such a mask, from a multiple of 16 bytes on, if there is room for it
  static constexpr int kMostMaskBytes = 16384;
  static constexpr int kMaskBytes = kConsumers * kRows * kKeys * kMaskValue;
  static constexpr bool kCopiesMask = kMaskBytes > 0 && kMaskBytes <= kMostMaskBytes;

  static constexpr bool kCodes = sizeof(Output) == 1;
  static constexpr Boxes kKeyBoxes{kSize}, kValueBoxes{kValueSize},
      kResultBoxes{kValueSize, sizeof(Output)};
  static constexpr int kKeyBytes = kKeyBoxes.bytes(kKeys), kValueBytes = kValueBoxes.bytes(kKeys);
  // a warpgroup's queries, in whose place its results are staged
  static constexpr int kQueryBytes = kKeyBoxes.bytes(kRows);
  static constexpr int kUnitBytes = std::max(kQueryBytes, kValueBoxes.bytes(kRows));

  // One consumer has enough registers beside a producer warp. Several get those of a producer
  // warpgroup: setmaxnreg moves registers among warpgroups, within what the launch allocated.
  static constexpr bool kMovesRegisters = kConsumers > 1;
  static constexpr int kThreads = 128 * kConsumers + (kMovesRegisters ? 128 : 32);
  static constexpr int kLaunched = 65536 / (kThreads * kBlocksOfSm) / 8 * 8,
                       kPool = kLaunched * (kConsumers + 1), kProducerLeast = 32,
                       kConsumerRegisters =
                           std::min((kPool - kProducerLeast) / kConsumers / 8 * 8, 240),
                       kProducerRegisters =
                           std::min(kPool - kConsumers * kConsumerRegisters, kLaunched / 8 * 8);

  struct Shared {
    alignas(1024) char k[kStages][kKeyBytes];
    alignas(1024) char v[kStages][kValueBytes];
    alignas(1024) char q[kQueryStages][kConsumers][kUnitBytes];
    alignas(16) char mask[kQueryStages][kCopiesMask ? kMaskBytes + 16 : 16];
    Barrier k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    Barrier q_full[kQueryStages], q_empty[kQueryStages];
    // kKeys: what is added to the scores of a stage's keys, read in pairs
    float bias[kHasBiases ? kStages : 1][kHasBiases ? kKeys : 2];
    Work work[kQueryStages];  // describes the queries of each stage
  };
  static constexpr int kSharedMemory = sizeof(Shared);

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(sizeof(Element) == 2, "values are the second product's B as they lie: 16 bits");
  static_assert(kCodes ? kValueSize % 16 == 0 && Chain::kParams == 2 : Chain::kParams == 0,
                "codes are staged 16 columns at a time; other results have no steps");
  static_assert(kResultBoxes.bytes(kRows) <= kUnitBytes, "results replace the queries");
  static_assert(kSize % 16 == 0 && kSize <= 256 && kValueSize % 8 == 0 && kValueSize <= 256,
                "wgmma multiplies 16 elements at a time and has up to 256 columns");
  static_assert(kKeys % 16 == 0 && kKeys <= 256, "a block of keys is multiplied by one wgmma");
  static_assert(kLastKeys % 16 == 0 && kLastKeys <= kKeys, "the last block is no longer");
  static_assert(kConsumers >= 1 && kConsumers <= 4, "barriers are numbered for four warpgroups");
  static_assert(!kTakesTurns || kConsumers > 1, "turns need two warpgroups");
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory, "a block exceeds shared memory");
};

}  // namespace attention_sm90
}  // namespace onnxbolt
