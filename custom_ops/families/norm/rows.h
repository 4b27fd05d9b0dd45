// The part of some rows that one thread holds in registers.
#pragma once
#include "cutlass/array.h"
#include "cutlass/fast_math.h"
#include "epilogue/rotation.h"
#include "epilogue/steps.h"
#include "families/norm/access.h"
#include "families/norm/row_sums.h"
#include "ops/norm/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {
namespace norm {

// A configuration's numbers by their names (NormConfig in onnxbolt/families/norm/).
template <class Row>
struct Tile {
  static constexpr int kRows = Row::at(kTileM);     // rows that a block's threads have at a time
  static constexpr int kLanes = Row::at(kTileN);    // threads of a row
  static constexpr int kVectors = Row::at(kTileK);  // accesses of a thread to a row
  static constexpr int kBatch = Row::at(kStages);   // rows of a thread under way together
  static constexpr int kWidth = Row::at(kAlignA);   // elements of an access
  static constexpr bool kResident = Row::at(onnxbolt::kResident);  // see run in kernel.h
  static constexpr int kHint = Row::at(kSchedule);
  static constexpr bool kTokens = Row::at(kIterator);       // rows are those of sequences
  static constexpr int kTables = Row::at(kConsumers);       // embeddings that take the place of x
  static constexpr bool kHeads = Row::at(kWarpN);           // rows are heads of tokens
  static constexpr bool kModulated = Row::at(kWarpK) > 0;   // sequences have a scale and a shift,
  static constexpr bool kGated = Row::at(kWarpK) > 1;       // and a gate
  static constexpr int kTerms = kTables > 0 ? kTables : 1;  // tensors that a residual is added to
  static constexpr int kThreads = kRows * kLanes;
  static constexpr int kBlockRows = kRows * kBatch;

  static_assert(kThreads % kWarp == 0 && kThreads <= 1024, "a block has whole warps");
  static_assert(kLanes <= kWarp || kRows == 1, "a row longer than a warp has the block");
};

struct Params : NormArguments {
  int vectors;  // accesses of a row
  float share;  // 1 / columns
  cutlass::FastDivmod sequences;

  Params(const NormArguments& arguments, int width)
      : NormArguments(arguments),
        vectors(columns / width),
        share(1.f / float(columns)),
        sequences(std::max(arguments.tokens, 1)) {}
};

struct HeadParams : Params {
  int heads;
  int64_t head_pitch, begin;
  cutlass::FastDivmod tokens_of;  // divides rows into tokens and heads

  HeadParams(const HeadNormArguments& arguments, int width)
      : Params(arguments, width),
        heads(arguments.heads),
        head_pitch(arguments.head_pitch),
        begin(arguments.begin),
        tokens_of(arguments.heads) {}
};

struct ModulatedParams : Params {
  const void *scale, *shift, *gate;

  ModulatedParams(const ModulatedNormArguments& arguments, int width)
      : Params(arguments, width),
        scale(arguments.scale),
        shift(arguments.shift),
        gate(arguments.gate) {}
};

template <class T>
using ParamsOf = std::conditional_t<T::kHeads, HeadParams,
                                    std::conditional_t<T::kModulated, ModulatedParams, Params>>;

// The row of a table that an index names; -1: none.
__device__ inline int64_t RowOf(const Embedding& embedding, int sequence, int token) {
  const int64_t place = sequence * embedding.sequence_pitch + token * embedding.token_pitch;
  int64_t index = embedding.wide ? static_cast<const int64_t*>(embedding.indices)[place]
                                 : static_cast<const int32_t*>(embedding.indices)[place];
  if (index < 0) index += embedding.rows;
  return index >= 0 && index < embedding.rows ? index : -1;
}

// A row of heads: its token, and its head of that.
struct Head {
  int token, head;

  __device__ static Head of(const HeadParams& params, int64_t row) {
    Head at;
    params.tokens_of(at.token, at.head, static_cast<int>(row));
    return at;
  }
};

// The rows that are added up for a row of y: of x or of each table, where -1 is none, and of the
// residual. Of heads, the element of x that a row begins at.
template <class T>
struct Source {
  int64_t terms[T::kTerms], residual;

  __device__ static Source of(const ParamsOf<T>& params, int64_t row) {
    Source source{{row}, row};
    if constexpr (T::kHeads) {
      const Head at = Head::of(params, row);
      source.terms[0] = at.token * params.x_pitch + params.begin + at.head * params.head_pitch;
    }
    if constexpr (T::kTokens) {
      int sequence, token;
      params.sequences(sequence, token, static_cast<int>(row));
      source.residual = token;
      if constexpr (T::kTables > 0) {
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < T::kTables; ++t)
          source.terms[t] = RowOf(params.embeddings[t], sequence, token);
      } else {
        const int64_t begin = int64_t(sequence) * (params.tokens - params.prefix);
        source.terms[0] = token < params.prefix ? -1 : begin + token - params.prefix;
      }
    }
    return source;
  }
};

// gamma and beta at one access of a row, in fp32.
template <int Width, int Count>
struct Factors {
  static constexpr int kPart = Width < 4 ? Width : 4;
  using Part = cutlass::AlignedArray<float, kPart>;
  float values[Count > 0 ? Count : 1][Width];

  __device__ void load(const Params& params, int vector) {
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < Count; ++c) {
      const float* from = params.epilogue.vectors[c] + vector * Width;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Width; i += kPart) {
        const Part part = *reinterpret_cast<const Part*>(from + i);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kPart; ++j) values[c][i + j] = part[j];
      }
    }
  }

  __device__ float apply(float value, int i) const {
    if constexpr (Count == 0) return value;
    if constexpr (Count == 1) return value * values[0][i];
    return value * values[0][i] + values[1][i];
  }
};

// Columns vector * Width .. of rows first, first + kRows, .., `kBatch` of them. Rows and columns
// beyond the end hold zeros, and are not stored.
template <class Row, class Element, class Output, class Chain, bool Stores>
class Rows {
  using T = Tile<Row>;
  using Params = ParamsOf<T>;
  using Access = cutlass::AlignedArray<Element, T::kWidth>;
  using Result = cutlass::AlignedArray<Output, T::kWidth>;
  static constexpr bool kResidual = Chain::kTensors > 0;

 public:
  using Factor = Factors<T::kWidth, Chain::kVectors>;

  __device__ Rows(const Params& params, int64_t first, int lane)
      : params_(params), first_(first), lane_(lane) {}

  __device__ static bool holds(const Params& params, int lane, int v) {
    return v * T::kLanes + lane < params.vectors;
  }

  // All loads are issued before the first value is used.
  __device__ void load() {
    Source<T> sources[T::kBatch];
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < T::kBatch; ++b) {
      if (row(b) < params_.rows) sources[b] = Source<T>::of(params_, row(b));
    }
    Access terms[T::kTerms][T::kBatch][T::kVectors], residual[T::kBatch][T::kVectors];
    Access gate[T::kGated ? T::kBatch : 1][T::kGated ? T::kVectors : 1];
    each([&](int b, int v, bool held) {
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < T::kTerms; ++t) {
        terms[t][b][v].clear();
        if (held && (!T::kTokens || sources[b].terms[t] >= 0))
          terms[t][b][v] =
              norm::Load<T::kHint>(at<const Access>(term(t), sources[b].terms[t], v, term_pitch()));
      }
      if constexpr (kResidual) {
        residual[b][v].clear();
        if (held) {
          residual[b][v] = norm::Load<T::kHint>(at<const Access>(params_.epilogue.tensors[0],
                                                                 sources[b].residual, v,
                                                                 params_.epilogue.tensor_pitch[0]));
        }
      }
      if constexpr (T::kGated) {
        gate[b][v].clear();
        if (held) gate[b][v] = of_sequence(params_.gate, b, v);
      }
    });
    each([&](int b, int v, bool held) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i) {
        values_[b][v][i] = float(terms[0][b][v][i]);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 1; t < T::kTerms; ++t) values_[b][v][i] += float(terms[t][b][v][i]);
        if constexpr (T::kGated) values_[b][v][i] *= float(gate[b][v][i]);
        if constexpr (kResidual) values_[b][v][i] += float(residual[b][v][i]);
      }
      if constexpr (Stores) store_sum(b, v, held);
    });
  }

  // The values become normalized ones.
  __device__ void normalize(RowSums<T::kLanes, T::kBatch>& sums) {
    float means[T::kBatch] = {}, scales[T::kBatch] = {};
    if (params_.centered) {
      each([&](int b, int v, bool) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < T::kWidth; ++i) means[b] += values_[b][v][i];
      });
      sums.add_up(means);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < T::kBatch; ++b) means[b] *= params_.share;
    }
    each([&](int b, int v, bool held) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i) {
        values_[b][v][i] -= means[b];
        if (held) scales[b] += values_[b][v][i] * values_[b][v][i];
      }
    });
    sums.add_up(scales);
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < T::kBatch; ++b)
      scales[b] = rsqrtf(scales[b] * params_.share + params_.epsilon);
    each([&](int b, int v, bool) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i) values_[b][v][i] *= scales[b];
    });
  }

  // gamma and beta, and cos and sin, for the thread's columns of heads.
  struct HeadOperands {
    Factor factors[T::kBatch][T::kVectors];
    cutlass::Array<float, T::kWidth> turns[T::kBatch][T::kVectors];
  };

  __device__ void load(HeadOperands& operands) const {
    each([&](int b, int v, bool held) {
      if (!held) return;
      const Head at = Head::of(params_, row(b));
      const int column = at.head * params_.columns + (v * T::kLanes + lane_) * T::kWidth;
      operands.factors[b][v].load(params_, column / T::kWidth);
      if constexpr (Chain::kRotated) {
        const RotationArguments& rotation = params_.epilogue.rotation;
        operands.turns[b][v] = epilogue::unrotated<T::kWidth>();
        if (column < rotation.columns)
          operands.turns[b][v] = epilogue::RotationRow<Element>(rotation, at.token)
                                     .template read<T::kWidth>(column % rotation.width);
      }
    });
  }

  __device__ void store(const HeadOperands& operands) const {
    each([&](int b, int v, bool held) {
      if (!held) return;
      float values[T::kWidth];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i)
        values[i] = operands.factors[b][v].apply(values_[b][v][i], i);
      if constexpr (Chain::kRotated) {
        static_assert(T::kWidth % 2 == 0, "an access has both columns of a pair");
        const auto& turns = operands.turns[b][v];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < T::kWidth; i += 2)
          epilogue::Rotate::rotate(values[i], values[i + 1], turns[i], turns[i + 1]);
      }
      Result y;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i) y[i] = Output(values[i]);
      const Head at = Head::of(params_, row(b));
      const int64_t place = at.token * params_.y_pitch + int64_t(at.head) * params_.columns;
      norm::Store<T::kHint>(this->template at<Result>(params_.y, place, v, 1), y);
    });
  }

  // The scale and the shift of each row's sequence, for the thread's columns.
  struct Modulation {
    Access scale[T::kBatch][T::kVectors], shift[T::kBatch][T::kVectors];

    __device__ float apply(float value, int b, int v, int i) const {
      return value + value * float(scale[b][v][i]) + float(shift[b][v][i]);
    }
  };

  __device__ void load(Modulation& modulation) const {
    each([&](int b, int v, bool held) {
      if (!held) return;
      modulation.scale[b][v] = of_sequence(params_.scale, b, v);
      modulation.shift[b][v] = of_sequence(params_.shift, b, v);
    });
  }

  // `factor(v)` has gamma and beta for the thread's access v; `modulation` counts for modulated
  // rows alone.
  template <class FactorOf>
  __device__ void store(const FactorOf& factor_of, const Modulation& modulation) const {
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < T::kVectors; ++v) {
      if (!holds(params_, lane_, v)) continue;
      const Factor factor = factor_of(v);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < T::kBatch; ++b) {
        if (row(b) >= params_.rows) continue;
        Result y;
        if constexpr (sizeof(Output) == 1) {
          cutlass::Array<float, T::kWidth> values;
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < T::kWidth; ++i) values[i] = factor.apply(values_[b][v][i], i);
          if constexpr (Chain::kStores) store_values(b, v, values);
          static_cast<cutlass::Array<Output, T::kWidth>&>(y) =
              Chain::template encode<Output>(values, params_.epilogue.params);
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < T::kWidth; ++i) {
            float value = factor.apply(values_[b][v][i], i);
            if constexpr (T::kModulated) value = modulation.apply(value, b, v, i);
            y[i] = Output(value);
          }
        }
        norm::Store<T::kHint>(at<Result>(params_.y, row(b), v, params_.y_pitch), y);
      }
    }
  }

 private:
  // The sum as other nodes read it is also what is normalized, as in the original model.
  __device__ void store_sum(int b, int v, bool held) {
    Access sum;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < T::kWidth; ++i) {
      sum[i] = Element(values_[b][v][i]);
      values_[b][v][i] = float(sum[i]);
    }
    if (held) norm::Store<T::kHint>(at<Access>(params_.sum, row(b), v, params_.columns), sum);
  }

  // The result as other nodes read it, beside its codes.
  __device__ void store_values(int b, int v, const cutlass::Array<float, T::kWidth>& values) const {
    Access stored;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < T::kWidth; ++i) stored[i] = Element(values[i]);
    norm::Store<T::kHint>(at<Access>(params_.sum, row(b), v, params_.columns), stored);
  }

  template <class Do>
  __device__ void each(const Do& act) const {
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < T::kBatch; ++b) {
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < T::kVectors; ++v)
        act(b, v, row(b) < params_.rows && holds(params_, lane_, v));
    }
  }

  // A vector of the row's sequence.
  __device__ Access of_sequence(const void* vectors, int b, int v) const {
    return *at<const Access>(vectors, params_.sequences.div(static_cast<int>(row(b))), v,
                             params_.columns);
  }

  // x, or a table.
  __device__ const void* term(int t) const {
    return T::kTables > 0 ? params_.embeddings[t].table : params_.x;
  }
  __device__ int64_t term_pitch() const {
    return T::kTables > 0 ? params_.columns : T::kHeads ? 1 : params_.x_pitch;
  }

  __device__ int64_t row(int b) const { return first_ + b * T::kRows; }

  template <class To, class Data>
  __device__ To* at(Data* tensor, int64_t row, int v, int64_t pitch) const {
    using Bytes = std::conditional_t<std::is_const_v<Data>, const char, char>;
    const int64_t place = row * pitch + int64_t(v * T::kLanes + lane_) * T::kWidth;
    return reinterpret_cast<To*>(static_cast<Bytes*>(tensor) + place * (sizeof(To) / T::kWidth));
  }

  const Params& params_;
  const int64_t first_;
  const int lane_;
  float values_[T::kBatch][T::kVectors][T::kWidth];
};

}  // namespace norm
}  // namespace onnxbolt
