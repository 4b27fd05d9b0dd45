// Attention on sm_90a with wgmma and TMA: y = softmax(scale q k^T, masked) v for each batch and
// head.
//
// How it works:
//
// 1. A work item is 64 queries for each consumer warpgroup, of one head. A block works through
//    several items, so that the next one's copies run under this one's products.
// 2. The producer warp (producer.h) picks the blocks of keys that an item reads, and copies
//    queries, keys and values into rings in shared memory. All warpgroups share the blocks. What
//    lies outside of a band, or behind the last key that a mask keeps, is not visited.
// 3. A consumer warpgroup (consumer.h) multiplies queries by keys into registers, makes weights of
//    the scores there (softmax.h: online softmax, statistics in fp32), and multiplies them, as the
//    operand in registers, by values as they lie: keys are the rows of B, which the instruction
//    transposes. One block's softmax runs under the products of its neighbours, and, where
//    warpgroups take turns, of another warpgroup.
// 4. The result replaces the queries in shared memory, from where TMA stores it. Where it is codes
//    of 8 bits, these are made of the sums in fp32, and four threads of a row exchange them, so
//    that each has four neighbours for stmatrix.
//
// Constraints: fp16 or bf16; heads of up to 256 elements; strides and addresses are multiples of 16
// bytes, as TMA requires, so that heads of codes have multiples of 16 elements. A mask has its
// values side by side along keys, or is the same for all queries. Copies fill elements beyond a
// head's size and rows beyond the last one with zeros, and stores leave them out. Element type,
// sizes, block of keys, form of the mask, and whether there is a band, are constants of a kernel;
// numbers of queries, keys, heads and batches are not.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "families/attention_sm90/consumer.h"
#include "families/attention_sm90/producer.h"
#include "runtime/dependent_launch.h"
#include "sm90/tensor_map.h"

namespace onnxbolt {
namespace attention_sm90 {

template <class K>
__device__ void Initialize(const Params& params, typename K::Shared& shared) {
  for (int i = 0; i < K::kStages; ++i) {
    shared.k_full[i].init(K::kKeyArrivals);
    shared.k_empty[i].init(K::kConsumers * K::kReleases);
    shared.v_full[i].init(1), shared.v_empty[i].init(K::kConsumers);
  }
  for (int i = 0; i < K::kQueryStages; ++i)
    shared.q_full[i].init(1), shared.q_empty[i].init(K::kConsumers);
  FenceBarrierInit();
  for (const CUtensorMap* map : {&params.q, &params.k, &params.v, &params.y}) Prefetch(*map);
}

template <class K>
static __global__ void __launch_bounds__(K::kThreads, K::kBlocksOfSm)
    run(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<typename K::Shared*>(memory);
  if (threadIdx.x == 0) Initialize<K>(params, shared);
  __syncthreads();
  LaunchDependents();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == K::kConsumers) {
    if constexpr (K::kMovesRegisters) ReleaseRegisters<K::kProducerRegisters>();
    if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 4 * K::kConsumers)
      Producer<K>(params, shared).run();
  } else {
    if constexpr (K::kMovesRegisters) ClaimRegisters<K::kConsumerRegisters>();
    Consumer<K>(params, shared, group).run();
  }
}

// Bounds of a band that can be added to positions without overflow; larger ones bound nothing.
constexpr int kMostPositions = 1 << 28, kUnbounded = 1 << 30;
inline int Clamped(int bound) { return std::min(std::max(bound, -kUnbounded), kUnbounded); }

// The mask's form that a kernel needs, in `form`. Returns what no kernel serves, else nullptr.
inline const char* CheckMask(const AttentionArguments& args, MaskForm form) {
  const ScoreMask& mask = args.mask;
  if (mask.kind == Masking::kNone)
    return form == MaskForm::kNone ? nullptr : "the kernel is for a mask";
  if (form == MaskForm::kKeys)
    return mask.query == 0 || args.queries == 1 ? nullptr : "the kernel's mask is one of keys";
  if (mask.key != 1 && args.keys > 1) return "a mask's values do not lie side by side along keys";
  const MaskForm found = mask.kind != Masking::kAdded ? MaskForm::kBoolean
                         : mask.fp32                  ? MaskForm::kAddedF32
                                                      : MaskForm::kAdded;
  return form == found ? nullptr : "the kernel is for another form of mask";
}

// Strides are in elements of `bytes` bytes.
inline const char* CheckView(const void* data, int64_t batch, int64_t row, int64_t head,
                             int bytes) {
  if (!IsAligned(data, 16)) return "q, k, v or y is not aligned to 16 bytes";
  const int unit = 16 / bytes;
  const bool whole = batch % unit == 0 && row % unit == 0 && head % unit == 0;
  return whole ? nullptr : "a stride of q, k, v or y is not a multiple of 16 bytes";
}

// The map of q, k, v or y, which is copied in boxes of `box_rows` positions. An axis of one has any
// stride.
template <class Element, class View>
const char* Describe(CUtensorMap& map, const View& view, int size, int positions, int heads,
                     int batch, const Boxes& boxes, int box_rows) {
  const auto stride = [](int extent, int64_t elements) {
    return extent > 1 ? elements * int64_t(sizeof(Element)) : 16;
  };
  return EncodeTiled(map, kPlainType<Element>, sizeof(Element), view.data,
                     {{size, 0, boxes.columns},
                      {positions, stride(positions, view.row), box_rows},
                      {heads, stride(heads, view.head), 1},
                      {batch, stride(batch, view.batch), 1}});
}

}  // namespace attention_sm90

template <class Config, class ElementType, class OutputType, class Chain>
struct AttentionSm90 {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  using K = attention_sm90::Shape<Config, ElementType, OutputType, Chain>;
  using Params = attention_sm90::Params;
  static constexpr int kCopiedRounds = 4;
  static constexpr int kSharedMemory = K::kSharedMemory;
  static constexpr auto kKernel = attention_sm90::run<K>;

  // Also checks the registers of the launch: consumers would wait forever for more than there are.
  static const char* prepare() {
    cudaFuncAttributes found;
    if (const char* error = ErrorText(cudaFuncGetAttributes(&found, kKernel))) return error;
    if (K::kMovesRegisters && found.numRegs != K::kLaunched)
      return "the kernel was compiled for other registers than it moves";
    return ReserveSharedMemory(kKernel, kSharedMemory);
  }

  static const char* can_implement(const void* arguments) {
    using namespace attention_sm90;
    const auto& args = *static_cast<const AttentionArguments*>(arguments);
    if (args.batch < 0 || args.queries < 0 || args.keys < 1) return "there are no keys";
    if (args.queries > kMostPositions || args.keys > kMostPositions)
      return "there are more than 2^28 queries or keys";
    if (!(args.scale > 0) || std::isinf(args.scale)) return "the scale is not positive and finite";
    if (args.key_heads < 1 || args.heads < 1 || args.heads % args.key_heads != 0)
      return "the heads of keys do not divide those of queries";
    if (int64_t(args.batch) * args.heads * groups(args) > INT32_MAX / 2)
      return "there are more than 2^30 work items";
    if (args.size > K::kSize || args.value_size > K::kValueSize)
      return "the kernel is for smaller heads";
    if (!K::kBand && (args.first != INT32_MIN || args.last != INT32_MAX))
      return "the kernel is not for bands";
    if (args.windows.height != 0 || args.mask.period != 0)
      return "the kernel is neither for windows of images nor for masks with a period";
    for (const HeadsView& view : {args.q, args.k, args.v})
      if (const char* error =
              CheckView(view.data, view.batch, view.row, view.head, sizeof(Element)))
        return error;
    if (const char* error =
            CheckView(args.y.data, args.y.batch, args.y.row, args.y.head, sizeof(Output)))
      return error;
    return CheckMask(args, K::kMask);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const AttentionArguments*>(arguments);
    if (args.batch == 0 || args.queries == 0) return nullptr;
    Params params;
    if (const char* error = describe(params, args)) return error;
    fill(params, args);
    if constexpr (K::kCodes) {
      const auto& coded = *static_cast<const CodedAttentionArguments*>(arguments);
      std::copy_n(coded.epilogue.params, 2, params.codes);
    }
    const int grid = std::min(params.items, launch.sm_count * K::kBlocksOfSm);
    // while few items follow each other, plain loads are faster than the copies' latency
    params.copies_mask = params.copies_mask && params.items >= kCopiedRounds * grid;
    params.rotates = params.group_count > 1 && grid % params.group_count == 0;
    return LaunchDependent(kKernel, grid, K::kThreads, launch.stream, params,
                           ArchOf<Row>::kDependentLaunch, kSharedMemory);
  }

 private:
  static int groups(const AttentionArguments& args) {
    return CeilDivide(args.queries, K::kConsumers * attention_sm90::kRows);
  }

  static const char* describe(Params& params, const AttentionArguments& args) {
    const auto map = [&](CUtensorMap& to, const auto& view, int size, int positions, int heads,
                         const attention_sm90::Boxes& boxes, int rows) {
      return attention_sm90::Describe<Element>(to, view, size, positions, heads, args.batch, boxes,
                                               rows);
    };
    constexpr int kRows = attention_sm90::kRows;
    const int size = args.size, value_size = args.value_size;
    const char* error = map(params.q, args.q, size, args.queries, args.heads, K::kKeyBoxes, kRows);
    if (!error)
      error = map(params.k, args.k, size, args.keys, args.key_heads, K::kKeyBoxes, K::kKeys);
    if (!error)
      error =
          map(params.v, args.v, value_size, args.keys, args.key_heads, K::kValueBoxes, K::kKeys);
    if (!error)
      error = attention_sm90::Describe<Output>(params.y, args.y, value_size, args.queries,
                                               args.heads, args.batch, K::kResultBoxes, kRows);
    return error;
  }

  static void fill(Params& params, const AttentionArguments& args) {
    const bool plain = args.masked == Masked::kPlain;
    params.group_count = groups(args);
    params.items = args.batch * args.heads * params.group_count;
    params.groups = sm90::Divisor(params.group_count), params.heads = sm90::Divisor(args.heads);
    params.batches = sm90::Divisor(args.batch);
    params.sharing = sm90::Divisor(args.heads / args.key_heads);
    params.queries = args.queries, params.keys = args.keys, params.scale = args.scale;
    params.scale_log2 = args.scale * attention_sm90::kLog2E;
    // times a power of two is exact: equal scores of a row without keys remain equal
    const float low = K::kAdds || K::kHasBiases ? -FLT_MAX : -0x1p100f;
    params.excluded = plain ? low : -INFINITY;
    params.empty = args.masked == Masked::kZero ? 0.f : NAN;
    params.mask = args.mask;
    params.mask_bytes = mask_bytes(args);
    params.copies_mask = K::kCopiesMask && args.keys <= K::kKeys &&
                         (args.mask.query == args.keys || args.queries == 1) &&
                         IsAligned(args.mask.data, 16);
    params.first = attention_sm90::Clamped(args.first);
    params.last = attention_sm90::Clamped(args.last);
    params.shift = args.shift;
    // the mean of all values is the answer for a row whose keys a band and a mask exclude
    params.all_blocks =
        K::kBand && plain && (args.mask.kind != Masking::kNone || has_empty_row(args));
  }

  static int64_t mask_bytes(const AttentionArguments& args) {
    const ScoreMask& mask = args.mask;
    const int64_t last = (args.batch - 1) * mask.batch + (args.heads - 1) * mask.head +
                         (args.queries - 1) * mask.query + (args.keys - 1) * mask.key;
    return (last + 1) * K::kMaskValue;
  }

  // True if a band leaves some query without keys.
  static bool has_empty_row(const AttentionArguments& args) {
    const int64_t first = args.first, last = args.last, shift = args.shift;
    return first > last || shift + last < 0 || args.queries - 1 + shift + first > args.keys - 1;
  }
};

}  // namespace onnxbolt
