// FusedConv: y[N, P, Q, K] = epilogue(x[N, H, W, C] * weight[K, R, S, C / groups]); also of
// ranks 3 and 5, with x or y in NCHW, with y in both layouts, and with the mean over each image.
#include "ops/conv/arguments.h"
#include "ops/shared/convolution.h"

namespace onnxbolt {
namespace {

template <size_t Rank>
class Conv : public Convolution {
 public:
  Conv(const Op& op, const Attributes& attributes)
      : Convolution(op, attributes, Rank), padding_(attributes.Int("padding", 0)) {}

  const char* Launch(const Tensors& t, const Run& run) const override {
    ConvArguments arguments = Arguments(t);
    arguments.stored = t.stored_data, arguments.padding = AsInt(padding_);
    return run(&arguments);
  }

 private:
  const int64_t padding_;
};

const RegisteredKind<Conv<4>> kConv("conv");
const RegisteredKind<Conv<3>> kConv1d("conv1d");
const RegisteredKind<Conv<5>> kConv3d("conv3d");

}  // namespace
}  // namespace onnxbolt
