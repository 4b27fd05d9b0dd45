// An epilogue as a CUTLASS 3.x visitor tree for sm_90: one node applies the steps, and its children
// are the operands.
//
// Vectors come through shared memory (Sm90RowBroadcast). The first tensor is the epilogue's source
// C, which TMA loads ahead of its use; a second one is read directly.
#pragma once
#include <utility>

#include "cute/tensor.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_load_tma_warpspecialized.hpp"
#include "cutlass/numeric_conversion.h"
#include "epilogue/chain.h"

namespace onnxbolt {
namespace epilogue {

// The root: converts the fp32 accumulators and the children's fragments (vectors, then tensors) to
// the output's element.
template <class Chain, class Output>
struct ChainNode : cutlass::epilogue::fusion::detail::Sm90VisitorImpl<> {
  struct Arguments {
    float params[kMaxParams];
  };
  using Params = Arguments;
  struct SharedStorage {};

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments,
                                                  void*) {
    return arguments;
  }
  template <class ProblemShape>
  static bool can_implement(const ProblemShape&, const Arguments&) {
    return true;
  }
  template <class ProblemShape>
  static size_t get_workspace_size(const ProblemShape&, const Arguments&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(const ProblemShape&, const Arguments&, void*,
                                              cudaStream_t, cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE ChainNode() {}
  CUTLASS_HOST_DEVICE ChainNode(const Params& params, const SharedStorage&) : params(&params) {}

  const Params* params;

  struct StoreCallbacks : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE explicit StoreCallbacks(const Params* params) : params(params) {}

    const Params* params;

    template <class Accumulator, class... Inputs, int N>
    CUTLASS_DEVICE cutlass::Array<Output, N> visit(
        const cutlass::Array<Accumulator, N>& accumulator, int, int, int,
        const cutlass::Array<Inputs, N>&... inputs) {
      typename Chain::template Operands<N> operands;
      collect<N>(operands, std::index_sequence_for<Inputs...>{}, inputs...);
      return Chain::template finish<Output>(accumulator, operands, params->params);
    }

    template <int N, size_t... Index, class... Inputs>
    CUTLASS_DEVICE static void collect(typename Chain::template Operands<N>& operands,
                                       std::index_sequence<Index...>,
                                       const cutlass::Array<Inputs, N>&... inputs) {
      ((slot<N, Index>(operands) = cutlass::NumericArrayConverter<float, Inputs, N>{}(inputs)),
       ...);
    }

    template <int N, size_t Index>
    CUTLASS_DEVICE static cutlass::Array<float, N>& slot(
        typename Chain::template Operands<N>& operands) {
      if constexpr (Index < Chain::kVectors)
        return operands.vectors[Index];
      else
        return operands.tensors[Index - Chain::kVectors];
    }
  };

  template <bool ReferenceSrc, class... Types>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Types...>&) {
    return StoreCallbacks(params);
  }
};

// The tree of an epilogue and its arguments. Tile: cute shape (M, N, K) of a block.
template <class Tile, class Chain, class Element, class Output>
struct ChainTree {
  static constexpr int kAlign = 16 / sizeof(Element);
  using RowMajor = cute::Stride<int64_t, cute::_1, int64_t>;
  using Vector = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, float, float>;
  using Source = cutlass::epilogue::fusion::Sm90SrcFetch<Element>;
  using Auxiliary =
      cutlass::epilogue::fusion::Sm90AuxLoad<0, void, Element, RowMajor, void, void, kAlign>;
  template <size_t Index>
  using Tensor = cute::conditional_t<Index == 0, Source, Auxiliary>;
  template <size_t>
  using EachVector = Vector;
  using Vectors = std::make_index_sequence<Chain::kVectors>;
  using Tensors = std::make_index_sequence<Chain::kTensors>;

  template <size_t... V, size_t... T>
  static auto tree(std::index_sequence<V...>, std::index_sequence<T...>)
      -> cutlass::epilogue::fusion::Sm90EVT<ChainNode<Chain, Output>, EachVector<V>...,
                                            Tensor<T>...>;
  using Callbacks = decltype(tree(Vectors{}, Tensors{}));
  using ElementSource = cute::conditional_t<(Chain::kTensors > 0), Element, void>;

  static typename Callbacks::Arguments arguments(const EpilogueArguments& operands) {
    return arguments(operands, Vectors{}, Tensors{});
  }

 private:
  template <size_t... V, size_t... T>
  static typename Callbacks::Arguments arguments(const EpilogueArguments& operands,
                                                 std::index_sequence<V...>,
                                                 std::index_sequence<T...>) {
    typename ChainNode<Chain, Output>::Arguments node;
    for (int i = 0; i < kMaxParams; ++i) node.params[i] = operands.params[i];
    return {typename Vector::Arguments{operands.vectors[V]}..., tensor<T>(operands)..., node};
  }

  template <size_t Index>
  static typename Tensor<Index>::Arguments tensor(const EpilogueArguments& operands) {
    if constexpr (Index == 0)
      return {};
    else
      return {static_cast<const Element*>(operands.tensors[Index]),
              Element(0),
              {operands.tensor_pitch[Index], {}, 0}};
  }
};

}  // namespace epilogue
}  // namespace onnxbolt
