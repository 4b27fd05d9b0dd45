// MaxPool, AveragePool and GlobalAveragePool in NHWC.
#include "ops/pool/arguments.h"
#include "ops/shared/window.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

template <PoolKind Kind>
class Pool : public Operation {
 public:
  Pool(const Op&, const Attributes& attributes)
      : window_(attributes), count_include_pad_(attributes.Int("count_include_pad", 0) != 0) {}

  Shape Output(const Shape& x, const Shape&) const override {
    const Window over = Over(x);
    const Image image(x);
    return {image.n, over.Extent(kHeight, image.h), over.Extent(kWidth, image.w), image.c};
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
    a.count_include_pad = count_include_pad_;
    a.x = t.x_data, a.y = t.y_data;
    a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    return run(&a);
  }

 protected:
  virtual Window Over(const Shape& x) const {
    RequireRank("x", x, 4);
    return window_;
  }

  const Window window_;

 private:
  const bool count_include_pad_;
};

// One window of the whole image.
class GlobalAveragePool : public Pool<PoolKind::kAverage> {
 public:
  using Pool::Pool;

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 4);
    return {x[0], 1, 1, x[3]};
  }

 protected:
  Window Over(const Shape& x) const override {
    RequireRank("x", x, 4);
    return window_.Over("x", x);
  }
};

const RegisteredKind<Pool<PoolKind::kMax>> kMaxPool("max_pool");
const RegisteredKind<Pool<PoolKind::kAverage>> kAveragePool("average_pool");
const RegisteredKind<GlobalAveragePool> kGlobalAveragePool("global_average_pool");

}  // namespace
}  // namespace onnxbolt
