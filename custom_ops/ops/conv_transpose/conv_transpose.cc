// FusedConvTranspose: y[N, P, Q, K] = epilogue of ConvTranspose(x[N, H, W, C]); also of ranks 3 and
// 5. Of a volume, each slice of x makes slices of y of its own: the filter's depth is the stride
// there, and y has no others.
//
// It is a convolution of stride 1 whose channels are those of all phases of the output's pixels:
// weight [groups x phases x K / groups, *taps, C / groups]. Its output j of phase f is pixel
// stride j + f - begin along each axis, of which the attribute `pads` has `begin`. `zeros`: those
// behind the filter along each axis, which the last phases meet at their first tap.
#include "ops/conv/arguments.h"
#include "ops/shared/window.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <size_t Rank>
class ConvTranspose : public Operation {
 public:
  ConvTranspose(const Op&, const Attributes& attributes)
      : window_(attributes),
        padding_(attributes.Ints("output_padding")),
        zeros_(attributes.Ints("zeros")),
        groups_(attributes.Int("group", 1)) {
    if (padding_.size() != Rank - 2 || groups_ < 1)
      Refuse("attribute output_padding or group is damaged");
    if (zeros_.size() != Rank - 2) Refuse("attribute zeros is damaged");
    for (int axis = kFirst; axis < kAxes; ++axis) {
      if (zeros(axis) < 0 || zeros(axis) >= window_.stride[axis])
        Refuse("attribute zeros has to be less than strides, and not negative");
    }
  }

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("x", x, Rank);
    RequireRank("weight", weight, Rank);
    RequireChannels(x, weight, groups_);
    if (weight[0] != kUnknown && weight[0] % (groups_ * phases()) != 0)
      Refuse("weight " + ort::ToString(weight) + " has not as many rows for each of " +
             std::to_string(groups_ * phases()) + " groups and phases");
    Shape y = x;
    y.back() = weight[0] == kUnknown ? kUnknown : weight[0] / phases();
    for (int axis = kFirst; axis < kAxes; ++axis)
      y[place(axis)] = extent(axis, x[place(axis)], taps(axis, weight));
    return y;
  }

  Symbols Names(Symbols x, const Shape&, const Shape& weight) const override {
    x.back() = "";
    for (int axis = kFirst; axis < kAxes; ++axis) {
      std::string& name = x[place(axis)];
      if (name.empty()) continue;
      const int64_t more = extent(axis, 0, taps(axis, weight));
      name = std::to_string(window_.stride[axis]) + "*(" + name + ")" + (more < 0 ? "" : "+") +
             std::to_string(more);
    }
    return x;
  }

  int64_t Columns(const Shape& y) const override { return y.back() * phases(); }
  int64_t VectorSize(const Shape& y) const override { return y.back() * phases(); }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape), y(t.y_shape);
    RequireSlices(x, y, t.weight_shape);
    ConvArguments a{};
    a.n = AsInt(x.n * x.d), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c);
    a.k = AsInt(y.c * phases());
    a.r = AsInt(taps(kHeight, t.weight_shape)), a.s = AsInt(taps(kWidth, t.weight_shape));
    a.stride_h = a.stride_w = a.dilation_h = a.dilation_w = 1;
    a.groups = AsInt(groups_);
    const Line rows = Along(kHeight, x.h, y.h, a.r), columns = Along(kWidth, x.w, y.w, a.s);
    a.p = rows.positions, a.pad_top = rows.begin, a.pad_bottom = rows.end;
    a.q = columns.positions, a.pad_left = columns.begin, a.pad_right = columns.end;
    a.x = t.x_data, a.filter = t.weight_data, a.y = t.y_data;
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    a.epilogue = t.epilogue;
    a.pixels = {AsInt(window_.stride[kHeight]),
                AsInt(window_.stride[kWidth]),
                rows.cut,
                columns.cut,
                AsInt(y.h),
                AsInt(y.w),
                AsInt(zeros(kHeight)),
                AsInt(zeros(kWidth)),
                AsInt(window_.stride[kDepth])};
    if (groups_ == 1 && a.pixels.lie_in_rows(a.q) && t.y_pitch == y.c) StoreRows(&a);
    return run(&a);
  }

 private:
  static constexpr int kFirst = kAxes - (Rank - 2);  // the first spatial axis that there is

  // An axis of the convolution of stride 1.
  struct Line {
    int positions, begin, end;  // outputs and pads
    int cut;                    // pixels of its first output that there are not
  };

  // The place of a spatial axis in shapes.
  static size_t place(int axis) { return 1 + axis - kFirst; }

  int64_t phases() const {
    return window_.stride[kDepth] * window_.stride[kHeight] * window_.stride[kWidth];
  }

  void RequireSlices(const Image& x, const Image& y, const Shape& weight) const {
    if (taps(kDepth, weight) != 1 || window_.begin[kDepth] != 0 ||
        y.d != x.d * window_.stride[kDepth])
      Refuse("the slices of y are not those that single slices of x make");
  }

  static int64_t taps(int axis, const Shape& weight) {
    return axis < kFirst ? 1 : weight[place(axis)];
  }

  int64_t zeros(int axis) const { return axis < kFirst ? 0 : zeros_[axis - kFirst]; }

  int64_t extent(int axis, int64_t input, int64_t taps) const {
    if (input == kUnknown || taps == kUnknown) return kUnknown;
    const int64_t more = axis < kFirst ? 0 : padding_[axis - kFirst];
    return (input - 1 + taps) * window_.stride[axis] - window_.begin[axis] - window_.end[axis] +
           more;
  }

  Line Along(int axis, int64_t input, int64_t output, int64_t taps) const {
    const int64_t stride = window_.stride[axis], cut = window_.begin[axis] % stride,
                  positions = (cut + output + stride - 1) / stride,
                  begin = taps - 1 - window_.begin[axis] / stride;
    return {AsInt(positions), AsInt(begin), AsInt(positions + taps - 1 - input - begin),
            AsInt(cut)};
  }

  // The pixels of a position's phases lie as its channels do: y is that of a convolution.
  void StoreRows(ConvArguments* a) const {
    a->pixels = {};
    a->y_pitch = a->k;
    for (int64_t& pitch : a->epilogue.tensor_pitch) pitch *= phases();
  }

  const Window window_;
  const Shape padding_, zeros_;
  const int64_t groups_;
};

const RegisteredKind<ConvTranspose<4>> kConvTranspose("conv_transpose");
const RegisteredKind<ConvTranspose<3>> kConvTranspose1d("conv_transpose1d");
const RegisteredKind<ConvTranspose<5>> kConvTranspose3d("conv_transpose3d");

}  // namespace
}  // namespace onnxbolt
