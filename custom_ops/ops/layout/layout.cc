// NchwToNhwc and NhwcToNchw: layout conversions, with channels of padding added or dropped.
#include "ops/layout/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <bool ToLast>
class Layout : public Operation {
 public:
  Layout(const Op&, const Attributes& attributes) : padding_(attributes.Int("padding", 0)) {}

  Shape Output(const Shape& x, const Shape&) const override {
    if (x.size() < 3) Refuse("x has shape " + ort::ToString(x) + ", expected rank 3 or more");
    Shape y = Converted(x);
    int64_t& channels = ToLast ? y.back() : y[1];
    if (channels == kUnknown) return y;
    channels += ToLast ? padding_ : -padding_;
    if (padding_ < 0 || channels < 1)
      Refuse("x has shape " + ort::ToString(x) + ", which does not fit a padding of " +
             std::to_string(padding_));
    return y;
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    if (padding_) (ToLast ? x[1] : x.back()).clear();
    return Converted(std::move(x));
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Shape &first = ToLast ? t.x_shape : t.y_shape, &last = ToLast ? t.y_shape : t.x_shape;
    LayoutArguments a{};
    a.to_last = ToLast;
    a.n = AsInt(first[0]), a.channels = AsInt(first[1]), a.stored = AsInt(last.back());
    a.pixels = AsInt(Elements(first) / (first[0] * first[1]));
    a.x = t.x_data, a.y = t.y_data;
    return run(&a);
  }

 private:
  template <class List>
  static List Converted(List list) {
    return ToLast ? ChannelsToLast(std::move(list)) : ChannelsToFirst(std::move(list));
  }

  const int64_t padding_;
};

const RegisteredKind<Layout<true>> kToNhwc("to_nhwc");
const RegisteredKind<Layout<false>> kToNchw("to_nchw");

}  // namespace
}  // namespace onnxbolt
