// MaxPool, AveragePool and GlobalAveragePool in NLC, NHWC and NDHWC. A line is an image of height
// 1.
#include <algorithm>

#include "ops/pool/arguments.h"
#include "ops/shared/window.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// The depth of a window. Where it has one slice, slices are images. Where it has one pixel of each
// slice, or all of them, the pixels of a slice are a row of an image whose height is the depth.
void AddDepth(const Window& window, const Image& x, const Image& y, PoolArguments& a) {
  if (window.IsPoint(kDepth)) {
    a.n = AsInt(x.n * x.d);
    return;
  }
  const bool one = window.IsPoint(kHeight) && window.IsPoint(kWidth);
  if (!one && !(window.Covers(kHeight, x.h) && window.Covers(kWidth, x.w))) {
    a.depth = {AsInt(x.d),
               AsInt(window.kernel[kDepth]),
               AsInt(y.d),
               AsInt(window.begin[kDepth]),
               AsInt(window.end[kDepth]),
               AsInt(window.stride[kDepth]),
               AsInt(window.dilation[kDepth])};
    return;
  }
  a.w = AsInt(x.h * x.w), a.q = AsInt(y.h * y.w);
  a.window_w = AsInt(window.kernel[kHeight] * window.kernel[kWidth]);
  a.h = AsInt(x.d), a.p = AsInt(y.d), a.window_h = AsInt(window.kernel[kDepth]);
  a.pad_top = AsInt(window.begin[kDepth]), a.pad_bottom = AsInt(window.end[kDepth]);
  a.stride_h = AsInt(window.stride[kDepth]), a.dilation_h = AsInt(window.dilation[kDepth]);
}

template <PoolKind Kind>
class Pool : public Operation {
 public:
  Pool(const Op&, const Attributes& attributes)
      : window_(attributes),
        count_include_pad_(attributes.Int("count_include_pad", 0) != 0),
        rank_(attributes.Ints("kernel_shape").size() + 2) {}

  Shape Output(const Shape& x, const Shape&) const override {
    const Window over = Over(x);
    Shape y = x;
    for (size_t i = 1; i + 1 < x.size(); ++i)
      y[i] = over.Extent(static_cast<int>(kAxes + i + 1 - x.size()), x[i]);
    return y;
  }

  Symbols Names(Symbols x, const Shape& x_shape, const Shape&) const override {
    return Over(x_shape).Names(std::move(x));
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Window window = Over(t.x_shape);
    const Image x(t.x_shape), y(t.y_shape);
    PoolArguments a{};
    a.kind = Kind;
    a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
    a.q = AsInt(y.w);
    a.window_h = AsInt(window.kernel[kHeight]), a.window_w = AsInt(window.kernel[kWidth]);
    a.pad_top = AsInt(window.begin[kHeight]), a.pad_left = AsInt(window.begin[kWidth]);
    a.pad_bottom = AsInt(window.end[kHeight]), a.pad_right = AsInt(window.end[kWidth]);
    a.stride_h = AsInt(window.stride[kHeight]), a.stride_w = AsInt(window.stride[kWidth]);
    a.dilation_h = AsInt(window.dilation[kHeight]), a.dilation_w = AsInt(window.dilation[kWidth]);
    AddDepth(window, x, y, a);
    a.count_include_pad = count_include_pad_;
    a.x = t.x_data, a.y = t.y_data;
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    return run(&a);
  }

 protected:
  virtual Window Over(const Shape& x) const {
    RequireRank("x", x, std::clamp<size_t>(rank_, 3, 5));
    return window_;
  }

  const Window window_;

 private:
  const bool count_include_pad_;
  const size_t rank_;
};

// One window of the whole image or volume.
class GlobalAveragePool : public Pool<PoolKind::kAverage> {
 public:
  using Pool::Pool;

  Shape Output(const Shape& x, const Shape&) const override {
    RequireImages(x);
    Shape y(x.size(), 1);
    y.front() = x.front(), y.back() = x.back();
    return y;
  }

 protected:
  Window Over(const Shape& x) const override {
    RequireImages(x);
    return window_.Over("x", x);
  }

 private:
  static void RequireImages(const Shape& x) {
    RequireRank("x", x, std::clamp<size_t>(x.size(), 3, 5));
  }
};

const RegisteredKind<Pool<PoolKind::kMax>> kMaxPool("max_pool");
const RegisteredKind<Pool<PoolKind::kAverage>> kAveragePool("average_pool");
const RegisteredKind<GlobalAveragePool> kGlobalAveragePool("global_average_pool");

}  // namespace
}  // namespace onnxbolt
