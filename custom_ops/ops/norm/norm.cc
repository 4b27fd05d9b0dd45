// LayerNorm and RmsNorm over the last axis of x, or of x plus a residual. Inputs: x, the residual,
// gamma, beta; outputs: y, and the sum of x and the residual.
//
// TokenLayerNorm and TokenRmsNorm: of sequences x [batch, tokens, columns], to each of which the
// same rows are added, [tokens, columns]. With `prefix`, the first rows of a sequence are these
// rows alone, and x has so many tokens less.
//
// EmbeddingLayerNorm and EmbeddingRmsNorm: of the sum of the rows [columns] of tables that indices
// name, plus the same rows [tokens, columns] for each sequence if there are such. Inputs: indices x
// [batch, tokens], their table [rows, columns], then indices that broadcast to those of x and their
// table for each further one, then those of the norm.
//
// HeadLayerNorm and HeadRmsNorm: of each head of x [batch, positions, N]. Attribute `view` says
// where the heads are, as for attention's operands: elements of a group, group of the first head,
// its first element in the group, and where both end. y [batch, positions, heads x size] has the
// heads side by side, or y [batch, positions, heads, size] with `apart`. The epilogue may rotate
// pairs of the first `rotated_columns` of all heads (ops/gemm/rotary.cc).
//
// ModulatedLayerNorm and ModulatedRmsNorm: of sequences x [batch, tokens, columns], whose rows are
// multiplied by 1 + scale in the end, and shift is added, where scale and shift are vectors of each
// sequence, [batch, 1, columns] or [batch, columns]. With a gate, such a vector as well, x is
// multiplied by it in front of the sum with the residual. Inputs: x, scale, shift, the gate, then
// those of the norm.
#include <algorithm>
#include <cstring>

#include "ops/norm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <bool kCentered>
class Norm : public Operation {
 public:
  Norm(const Op&, const Attributes& attributes) : epsilon_(attributes.Float("epsilon", 1e-5f)) {}

  Shape Output(const Shape& x, const Shape&) const override {
    if (x.empty()) Refuse("x is a scalar, expected [.., C]");
    return x;
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const NormArguments arguments{
        t.rows(), AsInt(t.x_shape.back()), kCentered, epsilon_,  t.x_data,
        t.y_data, t.stored_data,           t.x_pitch, t.y_pitch, t.epilogue};
    return run(&arguments);
  }

 private:
  const float epsilon_;
};

// The rows of one sequence, gamma and beta: the inputs from letter `begin` on.
EpilogueArguments ReadOperands(const Op& op, size_t begin, const Tensors& t) {
  EpilogueArguments epilogue = t.epilogue;
  const int64_t columns = t.y_shape.back();
  size_t vectors = 0;
  for (size_t i = begin; op.operands[i]; ++i) {
    const size_t index = op.first_operand + i;
    const OrtValue* value = t.buffers->Input(index);
    const bool vector = op.operands[i] == 'v';
    RequireShape(index, ort::ShapeOf(value),
                 vector ? Shape{columns} : Shape{t.y_shape[1], columns});
    const void* data = t.buffers->Read(value, vector ? kTypeF32 : op.element);
    if (vector) {
      epilogue.vectors[vectors++] = static_cast<const float*>(data);
    } else {
      epilogue.tensors[0] = data, epilogue.tensor_pitch[0] = columns;
    }
  }
  return epilogue;
}

// `op` outlives the node.
template <bool kCentered>
class TokenNorm : public Operation {
 public:
  TokenNorm(const Op& op, const Attributes& attributes)
      : op_(op),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        prefix_(attributes.Int("prefix", 0)) {
    if (prefix_ < 0) Refuse("attribute prefix is negative");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 3);
    return {x[0], x[1] == kUnknown ? kUnknown : x[1] + prefix_, x[2]};
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (prefix_) x[1].clear();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    NormArguments arguments{t.rows(),
                            AsInt(t.x_shape.back()),
                            kCentered,
                            epsilon_,
                            t.x_data,
                            t.y_data,
                            t.stored_data,
                            t.x_pitch,
                            t.y_pitch,
                            ReadOperands(op_, 0, t),
                            AsInt(t.y_shape[1]),
                            AsInt(prefix_)};
    return run(&arguments);
  }

 private:
  const Op& op_;
  const float epsilon_;
  const int64_t prefix_;
};

// `op` outlives the node.
template <bool kCentered>
class EmbeddingNorm : public Operation {
 public:
  EmbeddingNorm(const Op& op, const Attributes& attributes)
      : op_(op),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        columns_(attributes.Int("columns", 0)),
        tables_(std::count(op.operands, op.operands + std::strlen(op.operands), 'n') + 1) {
    if (columns_ <= 0) Refuse("attribute columns is missing or not positive");
    if (tables_ > kMaxTables) Refuse("there are more tables than a kernel takes");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 2);
    return {x[0], x[1], columns_};
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x.emplace_back();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    NormArguments arguments{t.rows(),
                            AsInt(columns_),
                            kCentered,
                            epsilon_,
                            nullptr,
                            t.y_data,
                            t.stored_data,
                            0,
                            t.y_pitch,
                            ReadOperands(op_, 2 * tables_ - 1, t),
                            AsInt(t.y_shape[1]),
                            0,
                            static_cast<int>(tables_)};
    for (size_t i = 0; i < tables_; ++i) arguments.embeddings[i] = Read(t, i);
    return run(&arguments);
  }

 private:
  // Embedding i of a slice.
  Embedding Read(const Tensors& t, size_t i) const {
    const size_t input = 2 * i + 1;  // the table, behind its indices
    const OrtValue* table = t.buffers->Input(input);
    const Shape shape = ort::ShapeOf(table);
    RequireRank("a table", shape, 2);
    RequireShape(input, shape, {shape[0], columns_});
    Embedding embedding{t.buffers->Read(table, op_.element),
                        t.x_data,
                        shape[0],
                        t.y_shape[1],
                        1,
                        op_.indices == kTypeI64};
    if (i > 0) Broadcast(t, input - 1, &embedding);
    return embedding;
  }

  // Indices that are the same for all sequences or tokens if an axis is missing or of size 1.
  void Broadcast(const Tensors& t, size_t input, Embedding* embedding) const {
    const OrtValue* value = t.buffers->Input(input);
    Shape shape = ort::ShapeOf(value);
    if (shape.size() < 2) shape.insert(shape.begin(), 2 - shape.size(), 1);
    const int64_t sequences = t.whole_y[0], tokens = t.whole_y[1];
    if (shape.size() != 2 || (shape[0] != 1 && shape[0] != sequences) ||
        (shape[1] != 1 && shape[1] != tokens))
      Refuse("input " + std::to_string(input) + " has shape " + ort::ToString(ort::ShapeOf(value)) +
             ", which does not broadcast to " + ort::ToString({sequences, tokens}));
    embedding->token_pitch = shape[1] == 1 ? 0 : 1;
    embedding->sequence_pitch = shape[0] == 1 ? 0 : shape[1];
    embedding->indices = Behind(t.buffers->Read(value, op_.indices),
                                t.first_row / tokens * embedding->sequence_pitch, op_.indices);
  }

  const Op& op_;
  const float epsilon_;
  const int64_t columns_;
  const size_t tables_;
};

template <bool kCentered>
class HeadNorm : public Operation {
 public:
  HeadNorm(const Op&, const Attributes& attributes)
      : epsilon_(attributes.Float("epsilon", 1e-5f)),
        rotated_(attributes.Int("rotated_columns", 0)),
        apart_(attributes.Int("apart", 0) != 0) {
    const Shape view = attributes.Ints("view");
    if (view.size() != 5 || view[1] < 0 || view[2] < 0 || view[3] <= view[1] ||
        view[4] <= view[2] || view[4] > view[0])
      Refuse("attribute view is missing or damaged");
    pitch_ = view[0], begin_ = view[1] * view[0] + view[2], end_ = view[3] * view[0];
    heads_ = view[3] - view[1], size_ = view[4] - view[2];
    if (rotated_ < 0 || rotated_ > heads_ * size_ || (apart_ && rotated_))
      Refuse("attribute rotated_columns is " + std::to_string(rotated_));
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 3);
    if (x[2] != kUnknown && (x[2] < end_ || x[2] % pitch_))
      Refuse("x has shape " + ort::ToString(x) + ", and not the heads of attribute view");
    return apart_ ? Shape{x[0], x[1], heads_, size_} : Shape{x[0], x[1], heads_ * size_};
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (apart_) x.emplace_back();
    return x;
  }
  int64_t Columns(const Shape&) const override { return size_; }
  int64_t VectorSize(const Shape&) const override { return heads_ * size_; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    HeadNormArguments arguments{{t.rows(), AsInt(size_), kCentered, epsilon_, t.x_data, t.y_data,
                                 nullptr, t.x_pitch, heads_ * size_, t.epilogue},
                                AsInt(heads_),
                                pitch_,
                                begin_};
    RotationArguments& rotation = arguments.epilogue.rotation;
    rotation.columns = AsInt(rotated_);
    if (rotation.rows > 0) rotation.first = AsInt(t.first_row % rotation.rows);
    return run(&arguments);
  }

 private:
  const float epsilon_;
  const int64_t rotated_;
  const bool apart_;
  int64_t pitch_, begin_, end_, heads_, size_;
};

// `op` outlives the node.
template <bool kCentered>
class ModulatedNorm : public Operation {
 public:
  ModulatedNorm(const Op& op, const Attributes& attributes)
      : op_(op),
        epsilon_(attributes.Float("epsilon", 1e-5f)),
        gated_(std::count(op.operands, op.operands + std::strlen(op.operands), 'i') > 2) {}

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 3);
    return x;
  }
  Symbols Names(Symbols x, const Shape&, const Shape&) const override { return x; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    ModulatedNormArguments arguments{{t.rows(), AsInt(t.x_shape.back()), kCentered, epsilon_,
                                      t.x_data, t.y_data, t.stored_data, t.x_pitch, t.y_pitch,
                                      t.epilogue, AsInt(t.y_shape[1])}};
    arguments.scale = OfSequences(t, kFirst), arguments.shift = OfSequences(t, kFirst + 1);
    if (gated_) arguments.gate = OfSequences(t, kFirst + 2);
    return run(&arguments);
  }

 private:
  static constexpr size_t kFirst = 1;

  // The vectors of a slice's sequences.
  const void* OfSequences(const Tensors& t, size_t index) const {
    const OrtValue* value = t.buffers->Input(index);
    const Shape shape = ort::ShapeOf(value);
    const int64_t sequences = t.whole_y[0], tokens = t.whole_y[1], columns = t.whole_y[2];
    if (shape.size() != 2) RequireShape(index, shape, {sequences, 1, columns});
    if (shape.size() == 2) RequireShape(index, shape, {sequences, columns});
    return Behind(t.buffers->Read(value, op_.element), tokens ? t.first_row / tokens * columns : 0,
                  op_.element);
  }

  const Op& op_;
  const float epsilon_;
  const bool gated_;
};

const RegisteredKind<Norm<true>> kLayerNorm("layer_norm", Cut::kRows);
const RegisteredKind<Norm<false>> kRmsNorm("rms_norm", Cut::kRows);
const RegisteredKind<TokenNorm<true>> kTokenLayerNorm("token_layer_norm", Cut::kImages,
                                                      Operands::kOwn);
const RegisteredKind<TokenNorm<false>> kTokenRmsNorm("token_rms_norm", Cut::kImages,
                                                     Operands::kOwn);
const RegisteredKind<EmbeddingNorm<true>> kEmbeddingLayerNorm("embedding_layer_norm", Cut::kImages,
                                                              Operands::kOwn);
const RegisteredKind<EmbeddingNorm<false>> kEmbeddingRmsNorm("embedding_rms_norm", Cut::kImages,
                                                             Operands::kOwn);
const RegisteredKind<HeadNorm<true>> kHeadLayerNorm("head_layer_norm");
const RegisteredKind<HeadNorm<false>> kHeadRmsNorm("head_rms_norm");
const RegisteredKind<ModulatedNorm<true>> kModulatedLayerNorm("modulated_layer_norm");
const RegisteredKind<ModulatedNorm<false>> kModulatedRmsNorm("modulated_rms_norm");

}  // namespace
}  // namespace onnxbolt
