// The part of some rows that one thread holds in registers.
#pragma once
#include "cutlass/array.h"
#include "cutlass/fast_math.h"
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

// The row of a table that an index names; -1: none.
__device__ inline int64_t RowOf(const Embedding& embedding, int sequence, int token) {
  const int64_t place = sequence * embedding.sequence_pitch + token * embedding.token_pitch;
  int64_t index = embedding.wide ? static_cast<const int64_t*>(embedding.indices)[place]
                                 : static_cast<const int32_t*>(embedding.indices)[place];
  if (index < 0) index += embedding.rows;
  return index >= 0 && index < embedding.rows ? index : -1;
}

// The rows that are added up for a row of y: of x or of each table, where -1 is none, and of the
// residual.
template <class T>
struct Source {
  int64_t terms[T::kTerms], residual;

  __device__ static Source of(const Params& params, int64_t row) {
    Source source{{row}, row};
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
    });
    each([&](int b, int v, bool held) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < T::kWidth; ++i) {
        values_[b][v][i] = float(terms[0][b][v][i]);
        CUTLASS_PRAGMA_UNROLL
        for (int t = 1; t < T::kTerms; ++t) values_[b][v][i] += float(terms[t][b][v][i]);
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

  // `factor(v)` has gamma and beta for the thread's access v.
  template <class FactorOf>
  __device__ void store(const FactorOf& factor_of) const {
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
          static_cast<cutlass::Array<Output, T::kWidth>&>(y) =
              Chain::template encode<Output>(values, params_.epilogue.params);
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < T::kWidth; ++i) y[i] = Output(factor.apply(values_[b][v][i], i));
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

  template <class Do>
  __device__ void each(const Do& act) const {
    CUTLASS_PRAGMA_UNROLL
    for (int b = 0; b < T::kBatch; ++b) {
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < T::kVectors; ++v)
        act(b, v, row(b) < params_.rows && holds(params_, lane_, v));
    }
  }

  // x, or a table.
  __device__ const void* term(int t) const {
    return T::kTables > 0 ? params_.embeddings[t].table : params_.x;
  }
  __device__ int64_t term_pitch() const {
    return T::kTables > 0 ? params_.columns : params_.x_pitch;
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
