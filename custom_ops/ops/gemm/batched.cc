// FusedBatchedGemm: y[B, M, N] = epilogue(x[B, M, K] weight[B, N, K]^T), a product of its own for
// each batch. x or weight may have one matrix for all batches.
#include "ops/gemm/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

class BatchedGemm : public Operation {
 public:
  BatchedGemm(const Op& op, const Attributes&) : element_(op.element) {}

  Shape Output(const Shape& x, const Shape& weight) const override {
    RequireRank("x", x, 3);
    RequireRank("weight", weight, 3);
    RequireChannels(x, weight, 1);
    return {Batches(x[0], weight[0]), x[1], weight[1]};
  }

  Symbols Names(Symbols x, const Shape& x_shape, const Shape& weight) const override {
    if (x_shape[0] == 1 || (x_shape[0] == kUnknown && weight[0] == kUnknown)) x[0] = "";
    x.back() = "";
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const int64_t batches = t.y_shape[0], m = t.y_shape[1], n = t.weight_shape[1],
                  k = t.x_shape.back();
    const int64_t first = t.first_row / m;  // the slice's first batch
    const bool one_a = ort::ShapeOf(t.x)[0] == 1, one_b = t.weight_shape[0] == 1;
    const int64_t a_stride = m * t.x_pitch, b_stride = n * k;
    GemmArguments arguments{m,        n,         k, t.x_data,  t.weight_data,
                            t.y_data, t.x_pitch, k, t.y_pitch, t.epilogue};
    arguments.batches = batches;
    if (one_a)  // the slice begins with the only matrix
      arguments.a = Behind(t.x_data, -first * a_stride, element_);
    else
      arguments.a_stride = a_stride;
    if (!one_b) {
      arguments.b = Behind(t.weight_data, first * b_stride, element_);
      arguments.b_stride = b_stride;
    }
    return run(&arguments);
  }

 private:
  static int64_t Batches(int64_t x, int64_t weight) {
    if (x == 1 || x == weight) return weight;
    if (weight == 1 || weight == kUnknown) return x;
    if (x == kUnknown) return weight;
    Refuse("x has " + std::to_string(x) + " batches, and weight " + std::to_string(weight));
  }

  int element_;
};

const RegisteredKind<BatchedGemm> kBatchedGemm("batched_gemm");

}  // namespace
}  // namespace onnxbolt
