// An epilogue by itself for every architecture: y = epilogue(x) on rows of channels, with accesses
// of up to 16 bytes to x.
//
// A thread keeps its group of channels and walks down the rows, so that it loads the epilogue's
// vectors once.
//
// Codes of 8 bits are elements like others: of x, the chain begins with Decode, and ends with
// Quantize where y has such. Tensors have the type of x.
//
// Constraints: channels, pitches and operands are multiples of align_a.
#pragma once
#include <algorithm>

#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "epilogue/chain.h"
#include "epilogue/codes.h"
#include "ops/elementwise/arguments.h"
#include "runtime/dependent_launch.h"
#include "runtime/instance.h"
#include "runtime/variants.h"

namespace onnxbolt {
namespace elementwise {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 4;
constexpr int kBatch =
    4;  // rows that a thread loads before it computes: bytes under way hide the memory's latency

struct Params : ElementwiseArguments {
  cutlass::FastDivmod groups;  // vectors of channels in a row
  int threads;                 // threads that work: a multiple of the groups
  int step;                    // rows from one of a thread's to its next

  Params(const ElementwiseArguments& arguments, int width, int sm_count)
      : ElementwiseArguments(arguments), groups(arguments.channels / width) {
    const int64_t most =
        std::max<int64_t>(int64_t(sm_count) * kBlocksPerSm * kThreads, groups.divisor);
    step = static_cast<int>(std::min<int64_t>(most / groups.divisor, rows));
    threads = step * groups.divisor;
  }
};

// Bytes of an access; a value of y may be wider than one of x, so that it takes several.
template <class Element, int Width>
constexpr int kAccess = std::min<int>(Width * sizeof(Element), 16);

template <class Element, int Width>
using Aligned = cutlass::AlignedArray<Element, Width, kAccess<Element, Width>>;

// The values that a thread loads for `Count` of its rows: x and the epilogue's tensors.
template <class Element, class Output, class Chain, int Width, int Count>
struct Batch {
  using Access = Aligned<Element, Width>;
  Access x[Count], tensors[Count][Chain::kTensors > 0 ? Chain::kTensors : 1];

  __device__ void load(const Params& params, int64_t row, int channel) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i, row += params.step) {
      if (row >= params.rows) return;
      x[i] = at(params.x, row * params.x_pitch + channel);
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < Chain::kTensors; ++t) {
        tensors[i][t] =
            at(params.epilogue.tensors[t], row * params.epilogue.tensor_pitch[t] + channel);
      }
    }
  }

  // `operands` holds the vectors.
  __device__ void store(const Params& params, int64_t row, int channel,
                        typename Chain::template Operands<Width>& operands,
                        const typename Chain::Packer& packer) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i, row += params.step) {
      if (row >= params.rows) return;
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < Chain::kTensors; ++t)
        operands.tensors[t] = epilogue::widened<Element, Width>(tensors[i][t], 0.f);
      using Result = Aligned<Output, Width>;
      Result y;
      static_cast<cutlass::Array<Output, Width>&>(y) = Chain::template finish_packed<Output>(
          epilogue::widened<Element, Width>(x[i], 0.f), operands, params.epilogue.params, packer);
      *reinterpret_cast<Result*>(static_cast<Output*>(params.y) + row * params.y_pitch + channel) =
          y;
    }
  }

 private:
  __device__ static Access at(const void* values, int64_t place) {
    return *reinterpret_cast<const Access*>(static_cast<const Element*>(values) + place);
  }
};

// static: units of other architectures hold kernels of the same name, which the linker must not
// merge.
template <class Element, class Output, class Chain, int Width>
static __global__ void __launch_bounds__(kThreads) apply(const __grid_constant__ Params params) {
  LaunchDependents();
  const int thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= params.threads) return;
  int first, group;
  params.groups(first, group, thread);
  const int channel = group * Width;
  typename Chain::template Operands<Width> operands;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < Chain::kVectors; ++v) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < Width; ++j)
      operands.vectors[v][j] = params.epilogue.vectors[v][channel + j];
  }
  const auto packer = Chain::packer(params.epilogue.params);
  WaitForPredecessors();
  for (int64_t row = first; row < params.rows; row += int64_t(kBatch) * params.step) {
    Batch<Element, Output, Chain, Width, kBatch> batch;
    batch.load(params, row, channel);
    batch.store(params, row, channel, operands, packer);
  }
}

}  // namespace elementwise

// One kernel serves every shape of a chain and element type: the width of access is picked at
// launch.
template <class Config, class ElementType, class OutputType, class Chain>
struct Elementwise {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr int kSharedMemory = 0;

  // The kernel of a width in channels.
  template <int Width>
  static constexpr Variant<elementwise::Params, 1> variant() {
    return {Width, {elementwise::apply<Element, Output, Chain, Width>}};
  }

  static const char* prepare() { return Variants<Elementwise>::prepare(); }

  static const char* can_implement(const void* arguments) {
    const auto& args = *static_cast<const ElementwiseArguments*>(arguments);
    if (const char* error = CheckOperands<Chain, Element>(args.epilogue, 1)) return error;
    return CheckExtents(args.rows, args.channels, 1);
  }

  static size_t workspace_size(const void*, const int64_t*) { return 0; }

  static const char* run(const void* arguments, const Launch& launch) {
    const auto& args = *static_cast<const ElementwiseArguments*>(arguments);
    if (args.rows == 0 || args.channels == 0) return nullptr;
    const auto& variant =
        Variants<Elementwise>::widest([&](int width) { return fits(args, width); });
    const elementwise::Params params(args, variant.width, launch.sm_count);
    const int blocks = (params.threads + elementwise::kThreads - 1) / elementwise::kThreads;
    return LaunchDependent(variant.functions[0], blocks, elementwise::kThreads, launch.stream,
                           params, ArchOf<Row>::kDependentLaunch);
  }

 private:
  static bool fits(const ElementwiseArguments& args, int width) {
    const size_t written = std::min<size_t>(width * sizeof(Output), 16);
    if (args.channels % width != 0 || args.x_pitch % width != 0 || args.y_pitch % width != 0)
      return false;
    return IsAligned(args.x, width * sizeof(Element)) && IsAligned(args.y, written) &&
           !CheckOperands<Chain, Element>(args.epilogue, width);
  }
};

}  // namespace onnxbolt
