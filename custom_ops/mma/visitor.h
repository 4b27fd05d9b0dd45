// An epilogue as the single visitor of a CUTLASS 2.x epilogue: it loads the operands, applies the
// steps, converts and stores.
//
// It is one node instead of a tree of CUTLASS's nodes: VisitorCompute passes no run-time parameters
// to its functor, and one node for all steps keeps one set of coordinates and bounds.
#pragma once
#include "cutlass/epilogue/threadblock/epilogue_with_visitor_callbacks.h"
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"
#include "cutlass/numeric_conversion.h"
#include "epilogue/chain.h"
#include "epilogue/rotation.h"

namespace onnxbolt {
namespace epilogue {

// N values in one access of at most 16 bytes at a time.
template <class T, int N>
using Access = cutlass::AlignedArray<T, N, (N * sizeof(T) < 16 ? N * sizeof(T) : 16)>;

// CUTLASS's batches: groups of output channels, which are neighbours in memory, or matrices, whose
// rows follow one another.
enum class Batches { kChannels, kRows };

// ThreadMap: cutlass::epilogue::threadblock::OutputTileThreadLayout of the kernel.
template <class ThreadMap, class Chain, class Element, class Output, Batches kBatches>
struct ChainVisitor {
  static constexpr int kAccess = ThreadMap::kElementsPerAccess;
  static constexpr int kColumns = ThreadMap::Iterations::kColumn,
                       kRows = ThreadMap::Iterations::kRow;
  static constexpr int kSteps = ThreadMap::Count::kTile;
  using Fragment = cutlass::Array<float, kAccess>;

  struct Arguments {
    EpilogueArguments operands;
    Output* d;
    int64_t ldd;
  };
  using Params = Arguments;
  struct SharedStorage {};

  template <class ProblemShape>
  static Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments, void*) {
    return arguments;
  }

  CUTLASS_HOST_DEVICE ChainVisitor() {}
  CUTLASS_HOST_DEVICE ChainVisitor(const Params& params, const SharedStorage&) : params(&params) {}

  const Params* params;

  // Coordinates: (element of the access, column, row, step) -> (m, n, batch).
  template <class Coordinates>
  struct Callbacks : cutlass::epilogue::threadblock::EmptyCallbacks {
    CUTLASS_DEVICE Callbacks(Coordinates coordinates, int m, int n, const Params* params)
        : coordinates(coordinates), m(m), n(n), params(params) {}

    // Vectors stay in registers: a thread keeps its columns through all steps.
    CUTLASS_DEVICE void begin_epilogue() {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Chain::kVectors * kColumns; ++i) {
        int column = cute::get<1>(coordinates(0, i % kColumns, 0, 0));
        vectors[i].clear();
        const float* vector =
            params->operands.vectors[i / kColumns] + channel(coordinates(0, i % kColumns, 0, 0));
        if (column < n) vectors[i] = *reinterpret_cast<const Access<float, kAccess>*>(vector);
      }
      load_tensors(0);
    }

    // A step's tensors are read one step ahead: its barriers and stores hide the latency.
    CUTLASS_DEVICE void begin_step(int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kFragments; ++i) tensors[i] = next_tensors[i];
      if (step + 1 < kSteps) load_tensors(step + 1);
    }

    template <class Accumulator, int N>
    CUTLASS_DEVICE Fragment visit(int step, int row, int column, int fragment,
                                  const cutlass::Array<Accumulator, N>& accumulator) {
      auto coordinate = coordinates(0, column, row, step);
      auto operands = operands_at<N>(coordinate);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Chain::kVectors; ++i)
        operands.vectors[i] = vectors[i * kColumns + column];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Chain::kTensors; ++i) {
        operands.tensors[i] = cutlass::NumericArrayConverter<float, Element, N>{}(
            tensors[i * kRows * kColumns + fragment]);
      }
      if (contains(coordinate))
        store(coordinate, Chain::template finish<Output>(Fragment(accumulator), operands,
                                                         params->operands.params));
      return Fragment(accumulator);
    }

   private:
    static constexpr int kFragments =
        Chain::kTensors * kRows * kColumns;  // values of all tensors in one step

    // Operands without vectors and tensors.
    template <int N, class Coordinate>
    CUTLASS_DEVICE auto operands_at(const Coordinate& coordinate) const {
      using Operands = typename Chain::template Operands<N>;
      if constexpr (Chain::kRotated) {
        const RotationArguments& rotation = params->operands.rotation;
        const int column = cute::get<1>(coordinate);
        if (!contains(coordinate) || column >= rotation.columns) return Operands(unrotated<N>());
        const RotationRow<Element> table(rotation, cute::get<0>(coordinate));
        return Operands(table.template read<N>(column % rotation.width));
      } else {
        return Operands();
      }
    }

    CUTLASS_DEVICE void load_tensors(int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kFragments; ++i) {
        int operand = i / (kRows * kColumns), fragment = i % (kRows * kColumns);
        auto coordinate = coordinates(0, fragment % kColumns, fragment / kColumns, step);
        next_tensors[i].clear();
        if (contains(coordinate)) next_tensors[i] = *source(operand, coordinate);
      }
    }

    template <class Coordinate>
    CUTLASS_DEVICE int channel(const Coordinate& coordinate) const {
      const int column = cute::get<1>(coordinate);
      return kBatches == Batches::kChannels ? cute::get<2>(coordinate) * n + column : column;
    }

    template <class Coordinate>
    CUTLASS_DEVICE int row(const Coordinate& coordinate) const {
      const int in_batch = cute::get<0>(coordinate);
      return kBatches == Batches::kRows ? cute::get<2>(coordinate) * m + in_batch : in_batch;
    }

    template <class Coordinate>
    CUTLASS_DEVICE bool contains(const Coordinate& coordinate) const {
      return cute::get<0>(coordinate) < m && cute::get<1>(coordinate) < n;
    }

    template <class Coordinate>
    CUTLASS_DEVICE const Access<Element, kAccess>* source(int operand,
                                                          const Coordinate& coordinate) const {
      int64_t offset =
          row(coordinate) * params->operands.tensor_pitch[operand] + channel(coordinate);
      auto tensor = static_cast<const Element*>(params->operands.tensors[operand]);
      return reinterpret_cast<const Access<Element, kAccess>*>(tensor + offset);
    }

    template <class Coordinate>
    CUTLASS_DEVICE void store(const Coordinate& coordinate,
                              const cutlass::Array<Output, kAccess>& values) {
      Access<Output, kAccess> access;
      static_cast<cutlass::Array<Output, kAccess>&>(access) = values;
      int64_t offset = row(coordinate) * params->ldd + channel(coordinate);
      *reinterpret_cast<Access<Output, kAccess>*>(params->d + offset) = access;
    }

    Coordinates coordinates;
    int m, n;
    const Params* params;
    Fragment vectors[Chain::kVectors > 0 ? Chain::kVectors * kColumns : 1];
    cutlass::Array<Element, kAccess> tensors[kFragments > 0 ? kFragments : 1],
        next_tensors[kFragments > 0 ? kFragments : 1];
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    auto coordinates = cute::group_modes<3, 6>(
        ThreadMap::partition(cute::make_identity_tensor(shape), thread, tile));
    return Callbacks<decltype(coordinates)>(coordinates, cute::get<0>(shape), cute::get<1>(shape),
                                            params);
  }
};

}  // namespace epilogue
}  // namespace onnxbolt
