// The arguments of a normalization of rows, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// A table [rows, columns], of which each token has the row that its index names: -1 is the last
// one, as in ONNX's Gather; zeros where the index is out of range.
struct Embedding {
  const void *table, *indices;  // indices are int64 if `wide`, else int32
  int64_t rows;
  int64_t sequence_pitch, token_pitch;  // from an index to the next one; 0: the same for all
  bool wide;
};

// y = (s - mean) / sqrt(mean of (s - mean)^2 + epsilon) of each row of s = x + residual, then times
// gamma plus beta. The epilogue holds the residual (tensor 0), gamma and beta (vectors 0 and 1), as
// far as there are such. A pitch is elements from one row to the next; rows of `sum` are dense.
//
// With `tokens`, rows are those of sequences of so many: the residual has the rows of one sequence,
// which serve all, and x has none for the first `prefix` rows of each, where s is the residual.
//
// With embeddings, the rows of tables take the place of those of x: s is the sum of all `tables`
// embeddings, plus the residual.
struct NormArguments {
  int64_t rows;
  int columns;
  bool centered;  // false: the mean counts as zero (RMS normalization)
  float epsilon;
  const void* x;
  void *y, *sum;  // `sum` takes s if kernels of the chain store it, or y's values beside codes
  int64_t x_pitch, y_pitch;
  EpilogueArguments epilogue;
  int tokens = 0, prefix = 0;  // 0 tokens: rows belong to no sequences
  int tables = 0;              // needs tokens, and no prefix
  Embedding embeddings[kMaxTables] = {};
};

// The same of each head of tokens by itself: `rows` are `heads` for each token. Head h of a token's
// x, which is `x_pitch` elements behind that of the token before, begins at element `begin` + h *
// `head_pitch`. The heads lie side by side in y, and so do gamma and beta: a value for each column
// of all heads. The epilogue may end with a rotation of these columns.
struct HeadNormArguments : NormArguments {
  int heads = 1;
  int64_t head_pitch = 0, begin = 0;
};

// The same of sequences of `tokens` rows, each of which has vectors [columns] of its own: behind
// gamma and beta, rows are multiplied by 1 + scale, and shift is added; s = gate * x + residual
// where there is a gate.
struct ModulatedNormArguments : NormArguments {
  const void *scale = nullptr, *shift = nullptr, *gate = nullptr;  // [sequences, columns], dense
};

}  // namespace onnxbolt
