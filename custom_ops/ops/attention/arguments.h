// The arguments of scaled dot-product attention, from the op to its kernels.
#pragma once
#include "runtime/kernel.h"

namespace onnxbolt {

// Queries, keys or values. Element d of head h at position s of batch b lies at
// data + b * batch + s * row + h * head + d; strides are in elements.
struct HeadsView {
  const void* data;
  int64_t batch, row, head;
};

// The result, which lies likewise.
struct HeadsOutput {
  void* data;
  int64_t batch, row, head;
};

// How a mask changes scores; onnxbolt/ops/attention/found.py has the words.
enum class Masking : int {
  kNone,
  kAdded,   // it is added to the scaled scores, in fp32
  kKept,    // a boolean: false excludes the key
  kDropped  // a boolean: true excludes the key
};

// The answer for a query whose keys are all excluded, by a boolean mask, a band or an added -inf.
enum class Masked : int {
  kPlain,  // the mean of all values, since an excluded score is a large finite number
  kZero,   // zeros
  kNan     // NaN, as softmax answers for scores of -inf
};

// The value for batch b, head h, query i and key j lies at
// data + b * batch + h * head + i * query + j * key; a stride of 0 broadcasts.
struct ScoreMask {
  Masking kind;
  bool fp32;  // values that are added are fp32, else of the operands' type; a boolean takes a byte
  const void* data;
  int64_t batch, head, query, key;  // strides in elements
  int period;  // batches after which the mask is the same again; 0: it has all of them
};

// The batches are windows of images: position p of window (a, b) is the pixel
// ((a window_height + p / window_width + shift_y) % height, (b window_width + p % window_width +
// shift_x) % width). All are zero: the batches lie by themselves.
struct Windows {
  int height, width, window_height, window_width, shift_y, shift_x;
};

// y = softmax(scale q k^T, masked) v for each batch and head. Scores, softmax and sums are fp32.
struct AttentionArguments {
  int batch, heads;
  int key_heads;  // divides `heads`: head h reads keys and values of head h / (heads / key_heads)
  int queries, keys;
  int size, value_size;  // elements of a head's queries and keys, and of its values
  float scale;
  HeadsView q, k, v;
  HeadsOutput y;
  ScoreMask mask;
  Masked masked;
  // A band: query i reads key j only if first <= j - i - shift <= last; INT_MIN and INT_MAX are no
  // bound. A causal band has last = 0. Where it ends at the last key for the last query, `shift` is
  // keys - queries, else 0.
  int first, last, shift;
  // With windows, a view's `batch` is the stride of images, and `row` that of pixels.
  Windows windows;
};

// Attention whose result is codes of 8 bits, which the epilogue's one step makes.
struct CodedAttentionArguments : AttentionArguments {
  EpilogueArguments epilogue;
};

}  // namespace onnxbolt
