// LayerNormalization and RMSNormalization of rows for every architecture, in one pass over memory:
// x, plus a residual if there is one, is read once, and stays in registers for the mean, for the
// mean of the centered squares (both in fp32), and for the result.
//
// Of tokens, residuals are the rows of one sequence, which serve all, and x lacks the first rows of
// each sequence; or rows of tables, which each token's indices name, are added up in place of x
// (Source in rows.h). Indices are read first, which is one more latency.
//
// Of heads, x is read at each head's place, and y has the heads side by side. gamma, beta, cos and
// sin are loaded with x, since rows of a thread are other heads; pairs of neighbouring columns are
// rotated in registers.
//
// Modulated rows are scaled and shifted by vectors of their sequence, which are loaded with x, and
// so is the gate by which x is multiplied in front of the sum.
//
// A row has a part of a warp, a warp, or a block. Results are the same bits on every run, and do
// not depend on other rows. They are codes of 8 bits where the chain ends with Quantize; with a
// step StoreF16 and so on in front of it, the second output is the result as values.
//
// Constraints: columns, pitches and pointers are multiples of align_a elements, and a row has at
// most tile_n * tile_k accesses of that size.
#pragma once
#include <algorithm>

#include "cutlass/fast_math.h"
#include "epilogue/chain.h"
#include "epilogue/codes.h"
#include "families/norm/rows.h"
#include "runtime/dependent_launch.h"

namespace onnxbolt {
namespace norm {

constexpr int kResidentThreads = 1024;  // on an SM, if blocks stay for several rows

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
//
// Resident: a block keeps gamma and beta in registers, and takes further rows until none is left.
template <class Row, class Element, class Output, class Chain, bool Stores>
static __global__ void __launch_bounds__(Tile<Row>::kThreads)
    run(const __grid_constant__ ParamsOf<Tile<Row>> params) {
  using T = Tile<Row>;
  using Held = Rows<Row, Element, Output, Chain, Stores>;
  LaunchDependents();
  const int lane = threadIdx.x % T::kLanes, begin = threadIdx.x / T::kLanes;
  typename Held::Factor kept[T::kResident ? T::kVectors : 1];
  if constexpr (T::kResident) {
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < T::kVectors; ++v) {
      if (Held::holds(params, lane, v)) kept[v].load(params, v * T::kLanes + lane);
    }
  }
  const auto factor = [&](int v) {
    if constexpr (T::kResident) {
      return kept[v];
    } else {
      typename Held::Factor loaded;
      loaded.load(params, v * T::kLanes + lane);
      return loaded;
    }
  };
  RowSums<T::kLanes, T::kBatch> sums;
  WaitForPredecessors();
  for (int64_t first = int64_t(blockIdx.x) * T::kBlockRows; first < params.rows;
       first += int64_t(gridDim.x) * T::kBlockRows) {
    Held rows(params, first + begin, lane);
    typename Held::Modulation modulation;
    if constexpr (T::kModulated) rows.load(modulation);
    rows.load();
    if constexpr (T::kHeads) {
      typename Held::HeadOperands operands;
      rows.load(operands);
      rows.normalize(sums);
      rows.store(operands);
    } else {
      rows.normalize(sums);
      rows.store(factor, modulation);
    }
    if constexpr (!T::kResident) break;
  }
}

}  // namespace norm

template <class Config, class ElementType, class OutputType, class Chain, bool Stores>
struct Norm {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using Tile = norm::Tile<Row>;
  static constexpr int kSharedMemory = 0;  // beside the kernel's own arrays
  static constexpr auto kKernel = norm::run<Row, Element, Output, Chain, Stores>;
  using Arguments = std::conditional_t<
      Tile::kHeads, HeadNormArguments,
      std::conditional_t<Tile::kModulated, ModulatedNormArguments, NormArguments>>;

  static_assert(Chain::kTensors <= 1 && Chain::kVectors <= 2, "a residual, gamma and beta");
  static_assert(!Tile::kTokens || Tile::kTables > 0 || Chain::kTensors == 1,
                "sequences have rows of their own");
  static_assert(!Tile::kTables || Tile::kTokens, "indices are those of sequences");
  static_assert(!Tile::kHeads || (!Tile::kTokens && !Tile::kResident && Chain::kTensors == 0 &&
                                  !Stores && sizeof(Output) > 1),
                "heads have neither residuals nor codes");
  static_assert(Tile::kHeads || !Chain::kRotated, "rows of heads alone are rotated");
  static_assert(!Tile::kModulated || (!Tile::kHeads && !Tile::kTokens && sizeof(Output) > 1),
                "modulated rows are those of x, and no codes");
  static_assert(!Tile::kGated || Chain::kTensors == 1, "a gate is one in front of a sum");
  static_assert(!Chain::kStores || (!Stores && sizeof(Output) == 1 &&
                                    std::is_same_v<typename Chain::Value, Element>),
                "values are stored beside codes, in the type of x, and no sum is stored then");

  static const char* prepare() { return ReserveSharedMemory(kKernel, 0); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const NormArguments*>(arguments);
    constexpr int kBytes = Tile::kWidth * sizeof(Element);
    if (const char* error = CheckExtents(args.rows, 1, args.columns)) return error;
    if (args.columns > Tile::kWidth * Tile::kLanes * Tile::kVectors)
      return "a row is longer than the threads' registers";
    if (args.columns % Tile::kWidth || args.x_pitch % Tile::kWidth || args.y_pitch % Tile::kWidth)
      return "columns or pitches are not multiples of align_a";
    if (!IsAligned(args.x, kBytes) || !IsAligned(args.y, Tile::kWidth * sizeof(Output)) ||
        !IsAligned(args.sum, kBytes))
      return "x or a result is not aligned to align_a elements";
    if ((Stores || Chain::kStores) && args.sum == nullptr) return "the second output is missing";
    if ((Tile::kTokens || Tile::kModulated) != (args.tokens > 0))
      return "the kernel is for other rows";
    if (Tile::kTokens && (args.prefix < 0 || args.prefix >= args.tokens || args.rows % args.tokens))
      return "rows are no whole sequences";
    if (const char* error = CheckTables(args)) return error;
    if constexpr (Tile::kHeads) {
      if (const char* error = CheckHeads(static_cast<const HeadNormArguments&>(args))) return error;
    }
    if constexpr (Tile::kModulated) {
      const auto& modulated = static_cast<const ModulatedNormArguments&>(args);
      if (const char* error = CheckModulation(modulated, kBytes)) return error;
    }
    return CheckOperands<Chain, Element>(args.epilogue, Tile::kWidth);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const NormArguments*>(arguments);
    if (args.rows == 0) return nullptr;
    const int64_t all = (args.rows + Tile::kBlockRows - 1) / Tile::kBlockRows;
    int64_t blocks = all;
    if constexpr (Tile::kResident) {
      constexpr int kOfSm = std::max(norm::kResidentThreads / Tile::kThreads, 1);
      const int64_t most = int64_t(launch.sm_count) * kOfSm;
      const int64_t rounds = (all + most - 1) / most;
      blocks = (all + rounds - 1) / rounds;
    }
    const norm::ParamsOf<Tile> params(static_cast<const Arguments&>(args), Tile::kWidth);
    return LaunchDependent(kKernel, static_cast<unsigned>(blocks), Tile::kThreads, launch.stream,
                           params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  static const char* CheckModulation(const ModulatedNormArguments& args, int bytes) {
    if (args.rows % args.tokens) return "rows are no whole sequences";
    if (!args.scale || !args.shift || Tile::kGated != (args.gate != nullptr))
      return "the kernel is for other vectors of sequences";
    if (!IsAligned(args.scale, bytes) || !IsAligned(args.shift, bytes) ||
        !IsAligned(args.gate, bytes))
      return "a sequence's vector is not aligned to align_a elements";
    return nullptr;
  }

  static const char* CheckHeads(const HeadNormArguments& args) {
    if (args.heads < 1 || args.rows % args.heads) return "rows are no whole tokens";
    if (args.begin % Tile::kWidth || args.head_pitch % Tile::kWidth)
      return "heads do not begin at multiples of align_a";
    return nullptr;
  }

  static const char* CheckTables(const NormArguments& args) {
    if (Tile::kTables != args.tables) return "the kernel is for another number of tables";
    if (Tile::kTables > 0 && args.prefix > 0) return "embeddings take the place of a prefix";
    for (int t = 0; t < Tile::kTables; ++t) {
      const Embedding& embedding = args.embeddings[t];
      if (!IsAligned(embedding.table, Tile::kWidth * sizeof(Element)))
        return "a table is not aligned to align_a elements";
      if (embedding.rows > 0 && (!embedding.table || !embedding.indices))
        return "a table or its indices are missing";
    }
    return nullptr;
  }
};

}  // namespace onnxbolt
