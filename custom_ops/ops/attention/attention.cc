// Scaled dot-product attention. Inputs: queries, keys, values, and a mask if there is one. y is
// [batch, queries, heads x value_size], or with heads apart [batch, queries, heads, value_size].
// With windows, queries, keys, values and y are images [images, height, width, ..] or [images,
// height x width, ..].
#include <algorithm>
#include <climits>
#include <cstring>

#include "ops/attention/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;
using ort::ToString;

constexpr size_t kMask = 3;  // the input

// Queries, keys or values of one launch.
struct Operand {
  HeadsView view;
  int64_t batch, positions, size;
};

// The place of heads in a tensor: [batch, heads, positions, size], or [batch, positions, ..], whose
// rows hold groups of elements, of which each head has a part of one.
class Place {
 public:
  Place(const char* name, const Attributes& attributes, int64_t heads)
      : name_(name), heads_(heads) {
    const Shape view = attributes.Ints((name_ + "_view").c_str());
    if (view.empty()) return;
    if (view.size() != 5 || view[1] < 0 || view[2] < 0 || view[3] - view[1] != heads ||
        view[4] <= view[2] || view[4] > view[0])
      Refuse("attribute " + name_ + "_view is damaged");
    pitch_ = view[0], first_ = view[1], lead_ = view[2], size_ = view[4] - view[2];
  }

  // The axis of positions.
  size_t Positions() const { return InRows() ? 1 : 2; }

  void Check(const Shape& shape) const {
    if (InRows() ? shape.size() < 3 : shape.size() != 4)
      Refuse(name_ + " has shape " + ToString(shape) + ", expected " +
             (InRows() ? "[batch, positions, ..]" : "[batch, heads, positions, size]"));
    const Shape row = Row(shape);
    if (std::find(row.begin(), row.end(), kUnknown) != row.end()) return;
    const bool fits = InRows()
                          ? Elements(row) % pitch_ == 0 && Elements(row) / pitch_ >= first_ + heads_
                          : shape[1] == heads_ || shape[1] == kUnknown;
    if (!fits)
      Refuse(name_ + " has shape " + ToString(shape) + ", which lacks " + std::to_string(heads_) +
             " heads" + (InRows() ? " of attribute " + name_ + "_view" : ""));
  }

  // From a tensor that `data` begins. A batch of one serves all.
  Operand In(const Shape& shape, const void* data, int type) const {
    Check(shape);
    const int64_t width = Elements(Row(shape)), positions = shape[Positions()],
                  batch = shape[0] == 1 ? 0 : Elements(shape) / std::max<int64_t>(shape[0], 1);
    const HeadsView view =
        InRows() ? HeadsView{Behind(data, first_ * pitch_ + lead_, type), batch, width, pitch_}
                 : HeadsView{data, batch, width, positions * width};
    return {view, shape[0], positions, InRows() ? size_ : width};
  }

  bool InRows() const { return pitch_ > 0; }

 private:
  // Dimensions of elements that lie side by side.
  Shape Row(const Shape& shape) const {
    return Shape(shape.begin() + (InRows() ? 2 : 3), shape.end());
  }

  const std::string name_;
  const int64_t heads_;
  int64_t pitch_ = 0, first_ = 0, lead_ = 0, size_ = 0;  // a pitch of 0: by heads
};

// An attribute that is a number of an enumeration.
template <class Enumeration>
Enumeration Numbered(const Attributes& attributes, const char* name, Enumeration last) {
  const int64_t number = attributes.Int(name, 0);
  if (number < 0 || number > static_cast<int64_t>(last))
    Refuse(std::string("attribute ") + name + " is " + std::to_string(number) +
           ", which this library does not know");
  return static_cast<Enumeration>(number);
}

int64_t Positive(const Attributes& attributes, const char* name, int64_t otherwise = 0) {
  const int64_t number = attributes.Int(name, otherwise);
  if (number <= 0) Refuse(std::string("attribute ") + name + " is missing or not positive");
  return number;
}

class Attention : public Operation {
 public:
  Attention(const Op& op, const Attributes& attributes)
      : op_(op),
        heads_(Positive(attributes, "heads")),
        key_heads_(Positive(attributes, "key_heads", heads_)),
        value_size_(Positive(attributes, "value_size")),
        scale_(attributes.Float("scale", 1.0f)),
        masking_(Numbered(attributes, "masking", Masking::kDropped)),
        masked_(Numbered(attributes, "masked", Masked::kNan)),
        band_(attributes.Ints("band")),
        windows_(WindowsOf(attributes.Ints("windows"))),
        period_(attributes.Int("mask_period", 0)),
        apart_(attributes.Int("apart", 0) != 0),
        q_("q", attributes, heads_),
        k_("k", attributes, key_heads_),
        v_("v", attributes, key_heads_) {
    const bool given = std::strlen(op.operands) > kMask - op.first_operand;
    if (given != (masking_ != Masking::kNone)) Refuse("attribute masking does not fit the inputs");
    if (heads_ % key_heads_ != 0) Refuse("attribute key_heads does not divide heads");
    if (!band_.empty() && band_.size() != 3) Refuse("attribute band is damaged");
    if (HasWindows() && (apart_ || !q_.InRows() || !k_.InRows() || !v_.InRows()))
      Refuse("attribute windows does not fit heads apart");
    if (period_ < 0) Refuse("attribute mask_period is negative");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    if (HasWindows()) {
      q_.Check(Pixels(x));
      Shape image(x.begin(), x.end() - 1);
      image.push_back(heads_ * value_size_);
      return image;
    }
    q_.Check(x);
    Shape y = {x[0], x[q_.Positions()], heads_, value_size_};
    if (!apart_) y = {y[0], y[1], heads_ * value_size_};
    return y;
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (HasWindows()) {
      x.back() = "";
      return x;
    }
    Symbols y = {x[0], x[q_.Positions()], ""};
    if (apart_) y.emplace_back();
    return y;
  }

  int64_t Columns(const Shape&) const override { return heads_ * value_size_; }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Operand q = q_.In(Pixels(t.x_shape), t.x_data, op_.element), k = Input(1, k_, t),
                  v = Input(2, v_, t);
    RequireFit(q, k, v);
    CodedAttentionArguments a{};
    a.epilogue = t.epilogue;
    a.batch = AsInt(q.batch * Batches()), a.heads = AsInt(heads_), a.key_heads = AsInt(key_heads_);
    a.queries = AsInt(q.positions / Batches()), a.keys = AsInt(k.positions / Batches());
    a.windows = windows_;
    a.size = AsInt(q.size), a.value_size = AsInt(v.size);
    a.scale = scale_;
    a.q = q.view, a.k = k.view, a.v = v.view;
    a.y = {t.y_data, q.positions * heads_ * value_size_, heads_ * value_size_, value_size_};
    if (masking_ != Masking::kNone)
      a.mask = Mask(t, {t.whole_y[0] * Batches(), heads_, a.queries, a.keys});
    a.masked = masked_;
    a.first = band_.empty() ? INT_MIN : static_cast<int>(band_[0]);
    a.last = band_.empty() ? INT_MAX : static_cast<int>(band_[1]);
    a.shift = !band_.empty() && band_[2] ? a.keys - a.queries : 0;
    return run(&a);
  }

 private:
  static Windows WindowsOf(const Shape& numbers) {
    if (numbers.empty()) return {};
    if (numbers.size() != 6) Refuse("attribute windows is damaged");
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t pixels = numbers[axis], window = numbers[2 + axis], shift = numbers[4 + axis];
      if (pixels <= 0 || window <= 0 || pixels % window || shift < 0 || shift >= pixels)
        Refuse("attribute windows is damaged");
    }
    return {AsInt(numbers[0]), AsInt(numbers[1]), AsInt(numbers[2]),
            AsInt(numbers[3]), AsInt(numbers[4]), AsInt(numbers[5])};
  }

  bool HasWindows() const { return windows_.height > 0; }

  // Batches of an image, or of a batch.
  int64_t Batches() const {
    return HasWindows() ? windows_.height / windows_.window_height *
                              int64_t(windows_.width / windows_.window_width)
                        : 1;
  }

  // The shape with one axis for an image's pixels.
  Shape Pixels(const Shape& shape) const {
    if (!HasWindows()) return shape;
    const int64_t pixels = int64_t(windows_.height) * windows_.width;
    const bool apart =
        shape.size() == 4 && shape[1] == windows_.height && shape[2] == windows_.width;
    if (!apart && (shape.size() != 3 || shape[1] != pixels))
      Refuse("an image has shape " + ToString(shape) + ", which does not fit attribute windows");
    return {shape[0], pixels, shape.back()};
  }

  // The number of a slice's first batch or image.
  static int64_t FirstBatch(const Tensors& t) {
    return t.first_row / Elements(Shape(t.y_shape.begin() + 1, t.y_shape.end() - 1));
  }

  // Keys or values of a slice.
  Operand Input(size_t index, const Place& place, const Tensors& t) const {
    const OrtValue* value = t.buffers->Input(index);
    Operand found =
        place.In(Pixels(ort::ShapeOf(value)), t.buffers->Read(value, op_.element), op_.element);
    if (found.batch != 1 && found.batch != t.whole_y[0])
      Refuse("input " + std::to_string(index) + " has shape " + ToString(ort::ShapeOf(value)) +
             ", which does not fit the batch of " + std::to_string(t.whole_y[0]));
    found.view.data = Behind(found.view.data, FirstBatch(t) * found.view.batch, op_.element);
    return found;
  }

  void RequireFit(const Operand& q, const Operand& k, const Operand& v) const {
    if (k.size != q.size || v.size != value_size_)
      Refuse("a head's queries, keys and values have " + ToString({q.size, k.size, v.size}) +
             " elements, expected " + ToString({q.size, q.size, value_size_}));
    if (k.positions != v.positions || k.positions == 0)
      Refuse("there are " + std::to_string(k.positions) + " keys and " +
             std::to_string(v.positions) + " values");
  }

  // The mask of a slice, which broadcasts to `scores`.
  ScoreMask Mask(const Tensors& t, const Shape& scores) const {
    const char letter = op_.operands[kMask - op_.first_operand];
    const int type = letter == 'b' ? kTypeBool : letter == 'f' ? kTypeF32 : op_.element;
    const OrtValue* value = t.buffers->Input(kMask);
    const Shape shape = ort::ShapeOf(value);
    int64_t strides[4] = {}, stride = 1;
    for (size_t i = 0; i < shape.size(); ++i) {  // from the last axis
      const int64_t size = shape[shape.size() - 1 - i];
      const bool repeats = i == 3 && size == period_ && size != 0 && scores[0] % size == 0;
      if (i >= 4 || (size != 1 && size != scores[3 - i] && !repeats))
        Refuse("the mask has shape " + ToString(shape) + ", which does not broadcast to " +
               ToString(scores));
      strides[3 - i] = size == 1 ? 0 : stride;
      stride *= size;
    }
    const int64_t first = FirstBatch(t) * Batches();
    if (period_ && first % period_)
      Refuse("the mask's period of " + std::to_string(period_) + " does not divide a slice");
    const void* data = Behind(t.buffers->Read(value, type), period_ ? 0 : first * strides[0], type);
    return {masking_,   type == kTypeF32, data,       strides[0],
            strides[1], strides[2],       strides[3], AsInt(period_)};
  }

  const Op& op_;
  const int64_t heads_, key_heads_, value_size_;
  const float scale_;
  const Masking masking_;
  const Masked masked_;
  const Shape band_;  // first, last, and 1 if it is aligned to the last key; empty: none
  const Windows windows_;
  const int64_t period_;  // a mask has so many batches, and begins again; 0: no period
  const bool apart_;
  const Place q_, k_, v_;
};

const RegisteredKind<Attention> kAttention("attention", Cut::kImages, Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
