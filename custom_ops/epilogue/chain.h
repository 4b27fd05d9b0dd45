// An epilogue as a type: Chain<Bias, Relu, Add> applies its steps in fp32 to a fragment of the
// accumulators.
#pragma once
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "epilogue/steps.h"
#include "runtime/kernel.h"

namespace onnxbolt {
namespace epilogue {

template <class First, class... Others>
struct LastOf : LastOf<Others...> {};
template <class First>
struct LastOf<First> {
  using Type = First;
};

// The first type that is not void, or void.
template <class... Types>
struct FirstOf {
  using Type = void;
};
template <class First, class... Others>
struct FirstOf<First, Others...> {
  using Type = First;
};
template <class... Others>
struct FirstOf<void, Others...> : FirstOf<Others...> {};

template <class... Steps>
struct Chain;

// A chain in two parts: the steps for each value, and whether the step `Last` follows them.
template <class Last, class Before, class... Steps>
struct SplitOff {
  using Pointwise = Before;
  static constexpr bool kFound = false;
};
template <class Last, class... Before>
struct SplitOff<Last, Chain<Before...>, Last> {
  using Pointwise = Chain<Before...>;
  static constexpr bool kFound = true;
};
template <class Last, class... Before, class Step, class... Steps>
struct SplitOff<Last, Chain<Before...>, Step, Steps...>
    : SplitOff<Last, Chain<Before..., Step>, Steps...> {};

template <class Last, class Whole>
struct Without;
template <class Last, class... Steps>
struct Without<Last, Chain<Steps...>> : SplitOff<Last, Chain<>, Steps...> {};

template <class... Steps>
struct Chain {
  static constexpr int kVectors = (0 + ... + (Steps::kOperand == Operand::kVector));
  static constexpr int kTensors = (0 + ... + (Steps::kOperand == Operand::kTensor));
  static constexpr int kParams = (0 + ... + Steps::kParams);
  static constexpr bool kHeavy = (false || ... || Steps::kHeavy);
  // A gate multiplies by the other half of a product with twice the columns: kFold columns for each
  // one of the result.
  static constexpr bool kGated = (false || ... || Steps::kGates);
  static constexpr int kFold = kGated ? 2 : 1;
  static constexpr bool kRotated = (false || ... || Steps::kRotates);
  // Beside codes a chain may read values, as its only tensor, and store some in front of its last
  // step; both are of one type.
  using Value = typename FirstOf<typename Steps::Value...>::Type;
  static constexpr bool kStores = (false || ... || Steps::kStores);
  static constexpr bool kReadsValues =
      (false || ... ||
       (Steps::kOperand == Operand::kTensor && !std::is_void_v<typename Steps::Value>));

  // The place of the first tensor's parameters: of codes their scale, then their zero point.
  static constexpr int kTensorParam = [] {
    int at = 0, found = -1;
    ((found = found < 0 && Steps::kOperand == Operand::kTensor ? at : found, at += Steps::kParams),
     ...);
    return found;
  }();

  static_assert(kVectors <= kMaxVectors,
                "a chain has at most kMaxVectors vectors along the channels");
  static_assert(kTensors <= kMaxTensors, "a chain has at most kMaxTensors tensor operands");
  static_assert(kParams <= kMaxParams, "a chain has at most kMaxParams parameters");
  static_assert((0 + ... + Steps::kGates) <= 1, "a chain has one gate at most");
  static_assert((0 + ... + Steps::kRotates) <= 1, "a chain rotates once at most");
  static_assert(!kRotated || !kGated, "a chain rotates, or has a gate");
  static_assert(((std::is_void_v<typename Steps::Value> ||
                  std::is_same_v<typename Steps::Value, Value>) &&
                 ...),
                "values beside codes are of one type");
  static_assert(!kReadsValues || kTensors == 1, "values are the only tensor of a chain");

  // The operands' values for one fragment of N neighbouring channels, in the order of the steps
  // that take them.
  template <int N>
  struct PlainOperands {
    cutlass::Array<float, N> vectors[kVectors > 0 ? kVectors : 1];
    cutlass::Array<float, N> tensors[kTensors > 0 ? kTensors : 1];
  };

  // With the other half of the product. A kernel that knows no gates does not compile, since it
  // cannot make these operands.
  template <int N>
  struct GatedOperands : PlainOperands<N> {
    cutlass::Array<float, N> half;
    __device__ explicit GatedOperands(const cutlass::Array<float, N>& half) : half(half) {}
  };

  // With cos and sin of each pair of columns, in their places. A kernel that cannot read them does
  // not compile either.
  template <int N>
  struct RotatedOperands : PlainOperands<N> {
    static_assert(N % 2 == 0, "a fragment has both columns of a pair");
    cutlass::Array<float, N> turns;
    __device__ explicit RotatedOperands(const cutlass::Array<float, N>& turns) : turns(turns) {}
  };

  template <int N>
  using Operands =
      std::conditional_t<kGated, GatedOperands<N>,
                         std::conditional_t<kRotated, RotatedOperands<N>, PlainOperands<N>>>;

  // The result in fp32, for callers that continue in fp32. Output: the type that it will be rounded
  // to. For 16 bits, steps may be approximated with an error below that rounding
  // (epilogue/steps.h).
  template <class Output = float, int N>
  __device__ static cutlass::Array<float, N> apply(cutlass::Array<float, N> x,
                                                   const Operands<N>& operands,
                                                   const float* params) {
    apply_from<sizeof(Output) == 2, false, 0, 0, 0, N, Steps...>(x, operands, params);
    return x;
  }

  // The result, rounded. The last step may do that itself, for two values at once.
  template <class Output, int N>
  __device__ static cutlass::Array<Output, N> finish(cutlass::Array<float, N> x,
                                                     const Operands<N>& operands,
                                                     const float* params) {
#if __CUDA_ARCH__ >= 800
    if constexpr (N % 2 == 0 && Last::template kFinishes<Output>) {
      apply_from<true, true, 0, 0, 0, N, Steps...>(x, operands, params);
      cutlass::AlignedArray<Output, N, sizeof(Pair)> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; i += 2)
        reinterpret_cast<Pair*>(&result)[i / 2] = Last::template finish<Output>(x[i], x[i + 1]);
      return result;
    }
#endif
    return cutlass::NumericArrayConverter<Output, float, N>{}(apply<Output>(x, operands, params));
  }

  // Makes the codes of `pack` and `encode`.
  using Packer = typename LastOf<Step<Operand::kNone>, Steps...>::Type::Packer;
  __device__ static Packer packer(const float* params) {
    return Packer(params + kParams - Last::kParams);
  }

  // The result, rounded; where the last step makes codes, `packer` packs them.
  template <class Output, int N>
  __device__ static cutlass::Array<Output, N> finish_packed(cutlass::Array<float, N> x,
                                                            const Operands<N>& operands,
                                                            const float* params,
                                                            const Packer& packer) {
#if __CUDA_ARCH__ >= 890
    if constexpr (Last::kPacks && N % 4 == 0) {
      const auto values = apply_but_last(x, operands, params);
      return as_codes<Output>(packer.is_centred() ? words<true, 2>(values, packer)
                                                  : words<false, 2>(values, packer));
    }
#endif
    return finish<Output>(x, operands, params);
  }

  // Codes of 8 bits, in their order, of values behind all steps but the last, which makes them.
  template <class Output, int N>
  __device__ static cutlass::Array<Output, N> encode(cutlass::Array<float, N> x,
                                                     const float* params) {
#if __CUDA_ARCH__ >= 890
    if constexpr (N % 4 == 0) return as_codes<Output>(words<false, 2>(x, packer(params)));
#endif
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) x[i] = Last::apply(x[i], 0.f, params + kParams - Last::kParams);
    return cutlass::NumericArrayConverter<Output, float, N>{}(x);
  }

  // The argument of the last step, in fp32.
  template <int N>
  __device__ static cutlass::Array<float, N> apply_but_last(cutlass::Array<float, N> x,
                                                            const Operands<N>& operands,
                                                            const float* params) {
    apply_from<false, true, 0, 0, 0, N, Steps...>(x, operands, params);
    return x;
  }

  // The codes of 8 bits that the last step makes of `x`: of values 8 i, 8 i + 1, 8 i + 4 and 8 i +
  // 5, then of 8 i + 2, 8 i + 3, 8 i + 6 and 8 i + 7, four in each word (sm90/codes.h has this
  // order).
  template <int N>
  __device__ static cutlass::Array<uint32_t, N / 4> pack(const cutlass::Array<float, N>& x,
                                                         const Packer& packer) {
    return packer.is_centred() ? words<true, 4>(x, packer) : words<false, 4>(x, packer);
  }

 private:
  using Last = typename LastOf<Step<Operand::kNone>, Steps...>::Type;

  // Words of four codes: of two neighbours, and of the two that lie `Apart` values behind these.
  template <bool Centred, int Apart, int N>
  __device__ static cutlass::Array<uint32_t, N / 4> words(const cutlass::Array<float, N>& x,
                                                          const Packer& packer) {
    cutlass::Array<uint32_t, N / 4> words;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N / 4; ++i) {
      const int at = Apart == 2 ? 4 * i : i / 2 * 8 + i % 2 * 2;
      words[i] = packer.template pack<Centred>(x[at], x[at + 1], x[at + Apart], x[at + Apart + 1]);
    }
    return words;
  }

  template <class Output, int Words>
  __device__ static cutlass::Array<Output, 4 * Words> as_codes(
      const cutlass::Array<uint32_t, Words>& words) {
    cutlass::AlignedArray<Output, 4 * Words, 4> codes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Words; ++i) reinterpret_cast<uint32_t*>(&codes)[i] = words[i];
    return codes;
  }

  // Vector, Tensor and Param count the operands of earlier steps, so that every index is a
  // constant.
  template <bool Approximate, bool ButLast, int Vector, int Tensor, int Param, int N>
  __device__ static void apply_from(cutlass::Array<float, N>&, const Operands<N>&, const float*) {}

  template <bool Approximate, bool ButLast, int Vector, int Tensor, int Param, int N, class Step,
            class... Rest>
  __device__ static void apply_from(cutlass::Array<float, N>& x, const Operands<N>& operands,
                                    const float* params) {
    if constexpr (ButLast && sizeof...(Rest) == 0) return;
    constexpr bool kVector = Step::kOperand == Operand::kVector,
                   kTensor = Step::kOperand == Operand::kTensor;
    if constexpr (Step::kRotates) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; i += 2)
        Step::rotate(x[i], x[i + 1], operands.turns[i], operands.turns[i + 1]);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; ++i) {
        float operand = 0.f;
        if constexpr (kVector) operand = operands.vectors[Vector][i];
        if constexpr (kTensor) operand = operands.tensors[Tensor][i];
        if constexpr (Step::kGates) operand += operands.half[i];
        if constexpr (Approximate && Step::kApproximable)
          x[i] = Step::approximate(x[i], operand, params + Param);
        else
          x[i] = Step::apply(x[i], operand, params + Param);
      }
    }
    apply_from<Approximate, ButLast, Vector + kVector, Tensor + kTensor, Param + Step::kParams, N,
               Rest...>(x, operands, params);
  }
};

}  // namespace epilogue
}  // namespace onnxbolt
