// Several products in one kernel: the layers of a configuration.
#pragma once
#include <algorithm>
#include <tuple>

#include "ops/gemm_chain/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {

// A configuration has the first layer's columns and depth in the tile's columns, and those of the
// other layers in the warp's; they include zeros.
template <class Config, class... Chains>
struct ChainLayers {
  using Row = Config;
  template <int L>
  using ChainOf = std::tuple_element_t<L, std::tuple<Chains...>>;

  static constexpr int kLayers = sizeof...(Chains), kLast = kLayers - 1;
  static constexpr int kDepth = Row::at(kTileK);

  static constexpr int columns(int layer) {
    constexpr int kAll[] = {Row::at(kTileN), Row::at(kWarpM), Row::at(kWarpN), Row::at(kWarpK)};
    return kAll[layer];
  }
  static constexpr int vectors(int layer) {
    constexpr int kAll[] = {Chains::kVectors...};
    return kAll[layer];
  }
  static constexpr int params(int layer) {
    constexpr int kAll[] = {Chains::kParams...};
    return kAll[layer];
  }
  static constexpr int depth(int layer) { return layer == 0 ? kDepth : columns(layer - 1); }

  // True if `columns` and `depth` are above zero and multiples of `multiple` from `layer` on.
  static constexpr bool is_whole(int multiple, int layer = 0) {
    return layer == kLayers || (columns(layer) > 0 && columns(layer) % multiple == 0 &&
                                depth(layer) % multiple == 0 && is_whole(multiple, layer + 1));
  }

  // Gives each layer its own parameters; all of them follow one another in the first layer's.
  static ChainArguments spread_params(ChainArguments chain) {
    const EpilogueArguments all = chain.epilogue[0];
    for (int layer = 0, first = 0; layer < kLayers; first += params(layer++))
      std::copy_n(all.params + first, params(layer), chain.epilogue[layer].params);
    return chain;
  }

  // Checks the layers for a kernel that stores no result between them. Returns nullptr if the
  // kernel serves them, else what is wrong.
  static const char* check_layers(const ChainArguments& chain) {
    if (chain.layers != kLayers) return "the kernel is for another number of layers";
    if (chain.stored != nullptr)
      return "the first layer's result is to be stored, and the kernel does not store it";
    for (int layer = 0; layer < kLayers; ++layer) {
      if (chain.n[layer] < 1 || chain.n[layer] > columns(layer))
        return "a layer is wider than the kernel";
      for (int v = 0; v < vectors(layer); ++v) {
        if (chain.epilogue[layer].vectors[v] == nullptr) return "an epilogue vector is missing";
      }
    }
    return nullptr;
  }

  static_assert(kLayers >= 1 && kLayers <= kMaxLayers);
  static_assert((0 + ... + Chains::kParams) <= kMaxParams,
                "all layers together have at most kMaxParams parameters");
  static_assert((0 + ... + Chains::kTensors) == ChainOf<kLast>::kTensors,
                "inner layers of a chain have no residual");
};

}  // namespace onnxbolt
