// GridSample in NHWC (ONNX), and deformable attention: weighted sums of samples of several images,
// whose pixels are the rows of x. Inputs behind x: the grid, in x's type or float32, and the
// weights.
#include "ops/grid_sample/arguments.h"
#include "runtime/operation.h"

namespace onnxbolt {
namespace {

using ort::Shape;

// `op` outlives the node.
class Sampling : public Operation {
 public:
  Sampling(const Op& op, const Attributes& attributes)
      : op_(op), sampling_(attributes.Ints("sampling")) {
    if (sampling_.size() != 3) Refuse("attribute sampling has to have three numbers");
  }

 protected:
  GridSampleArguments Arguments(const Tensors& t) const {
    GridSampleArguments a{};
    a.mode = static_cast<SampleMode>(sampling_[0]);
    a.outside = static_cast<Outside>(sampling_[1]);
    a.align_corners = sampling_[2] != 0, a.grid_f32 = op_.operands[0] == 'f';
    a.n = AsInt(t.x_shape[0]);
    a.x = t.x_data, a.y = t.y_data, a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
    return a;
  }

  // Input `index` from the slice's first image on; `of_image` elements belong to each.
  const void* Slice(const Tensors& t, size_t index, int type, int64_t of_image) const {
    const int64_t image = t.first_row / (t.rows() / t.y_shape[0]);
    return Behind(t.buffers->Read(t.buffers->Input(index), type), image * of_image, type);
  }

  int GridType() const { return op_.operands[0] == 'f' ? kTypeF32 : op_.element; }

  const Op& op_;

 private:
  const Shape sampling_;  // mode, what lies outside, whether corners are aligned
};

class GridSample : public Sampling {
 public:
  using Sampling::Sampling;

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 4);
    return {x[0], kUnknown, kUnknown, x[3]};
  }

  Shape OutputOfRun(const Shape& x, const Shape&, const Buffers& inputs) const override {
    RequireRank("x", x, 4);
    const Shape grid = ort::ShapeOf(inputs.Input(1));
    if (grid.size() != 4 || grid[0] != x[0] || grid[3] != 2)
      Refuse("the grid has shape " + ort::ToString(grid) + ", which does not fit x " +
             ort::ToString(x));
    return {x[0], grid[1], grid[2], x[3]};
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x[1].clear(), x[2].clear();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    const Image x(t.x_shape), y(t.y_shape);
    GridSampleArguments a = Arguments(t);
    a.queries = AsInt(y.h * y.w), a.heads = 1, a.size = AsInt(x.c), a.levels = a.points = 1;
    a.rows = x.h * x.w;
    a.level[0] = {AsInt(x.h), AsInt(x.w), 0};
    a.grid = Slice(t, 1, GridType(), int64_t{a.queries} * 2);
    return run(&a);
  }
};

class DeformableAttention : public Sampling {
 public:
  DeformableAttention(const Op& op, const Attributes& attributes)
      : Sampling(op, attributes),
        heads_(attributes.Int("heads", 0)),
        levels_(attributes.Ints("levels")) {
    if (heads_ < 1 || levels_.empty() || levels_.size() % 2 != 0 ||
        levels_.size() / 2 > kMaxSampledLevels)
      Refuse("attribute heads or levels is missing or damaged");
  }

  Shape Output(const Shape& x, const Shape&) const override {
    RequireRank("x", x, 3);
    if (x[2] != kUnknown && x[2] % heads_ != 0)
      Refuse("x " + ort::ToString(x) + " does not divide into " + std::to_string(heads_) +
             " heads");
    return {x[0], kUnknown, x[2]};
  }

  Shape OutputOfRun(const Shape& x, const Shape& weight, const Buffers& inputs) const override {
    Shape y = Output(x, weight);
    const Shape grid = ort::ShapeOf(inputs.Input(1));
    if (grid.size() != 6 || grid[0] != x[0] || grid[2] != heads_ ||
        grid[3] != static_cast<int64_t>(levels_.size() / 2) || grid[5] != 2)
      Refuse("the grid has shape " + ort::ToString(grid) + ", which does not fit x " +
             ort::ToString(x));
    RequireShape(2, ort::ShapeOf(inputs.Input(2)), {x[0], grid[1], heads_, grid[3] * grid[4]});
    y[1] = grid[1];
    return y;
  }

  Symbols Names(Symbols x, const Shape&, const Shape&) const override {
    x[1].clear();
    return x;
  }

  const char* Launch(const Tensors& t, const Run& run) const override {
    GridSampleArguments a = Arguments(t);
    a.queries = AsInt(t.y_shape[1]), a.heads = AsInt(heads_);
    a.size = AsInt(t.x_shape[2] / heads_), a.levels = AsInt(levels_.size() / 2);
    a.points = AsInt(ort::ShapeOf(t.buffers->Input(1))[4]), a.rows = t.x_shape[1];
    int64_t first = 0;
    for (int i = 0; i < a.levels; ++i) {
      const int64_t h = levels_[2 * i], w = levels_[2 * i + 1];
      a.level[i] = {AsInt(h), AsInt(w), AsInt(first)};
      first += h * w;
    }
    const int64_t points = int64_t{a.queries} * a.heads * a.levels * a.points;
    a.grid = Slice(t, 1, GridType(), 2 * points);
    a.weights = Slice(t, 2, op_.element, points);
    return run(&a);
  }

 private:
  const int64_t heads_;
  const Shape levels_;  // height and width of each
};

const RegisteredKind<GridSample> kGridSample("grid_sample", Cut::kImages, Operands::kOwn);
const RegisteredKind<DeformableAttention> kDeformableAttention("deformable_attention", Cut::kImages,
                                                               Operands::kOwn);

}  // namespace
}  // namespace onnxbolt
