#include "ops/shared/layers.h"

#include "ops/gemm_chain/arguments.h"

#include <algorithm>

namespace onnxbolt {
namespace {

using ort::Shape;

// The first layer, whose weight this is: [n, k], or a convolution's [n, r, s, c].
void BeginLayers(ChainArguments& chain, const OrtValue* weight, const void* data) {
  const Shape shape = ort::ShapeOf(weight);
  chain.layers = 1, chain.n[0] = shape.empty() ? 0 : shape[0];
  chain.k = Elements(shape) / std::max<int64_t>(chain.n[0], 1);
  chain.weights[0] = data;
}

// The next layer: its weight is [n, k], or a 1x1 convolution's [n, 1, 1, k].
void AddLayer(ChainArguments& chain, size_t input, const OrtValue* weight, const void* data,
              bool is_conv) {
  const Shape shape = ort::ShapeOf(weight);
  if (chain.layers == kMaxLayers) Refuse("more than " + std::to_string(kMaxLayers) + " layers");
  const int64_t n = shape.empty() ? 0 : shape[0], k = chain.n[chain.layers - 1];
  RequireShape(input, shape, is_conv ? Shape{n, 1, 1, k} : Shape{n, k});
  chain.n[chain.layers] = n;
  chain.weights[chain.layers++] = data;
}

}  // namespace

ChainArguments ReadLayers(const Op& op, const Tensors& t, const std::vector<float>& params,
                          bool is_conv) {
  Buffers& buffers = *t.buffers;
  ChainArguments a{};
  a.m = t.rows(), a.lda = t.x_pitch, a.ldd = t.y_pitch;
  a.a = t.x_data, a.d = t.y_data, a.stored = t.stored_data;
  BeginLayers(a, buffers.Input(1), buffers.Read(buffers.Input(1), op.element));
  size_t vectors = 0, tensors = 0;
  for (size_t i = 0; op.operands[i] && op.operands[i] != 'y'; ++i) {
    const size_t index = op.first_operand + i;
    const OrtValue* value = buffers.Input(index);
    EpilogueArguments& epilogue = a.epilogue[a.layers - 1];
    if (op.operands[i] == 'w') {
      AddLayer(a, index, value, buffers.Read(value, op.element), is_conv);
      vectors = 0;
    } else if (op.operands[i] == 'v') {
      RequireShape(index, ort::ShapeOf(value), {a.n[a.layers - 1]});
      epilogue.vectors[vectors++] = static_cast<const float*>(buffers.Read(value, kTypeF32));
    } else {  // tensors are one layer's
      const int64_t pitch = a.n[a.layers - 1];
      RequireShape(index, ort::ShapeOf(value), RowsOf(t.whole_y, pitch));
      epilogue.tensor_pitch[tensors] = pitch;
      epilogue.tensors[tensors++] =
          Behind(buffers.Read(value, op.element), t.first_row * pitch, op.element);
    }
  }
  std::copy(params.begin(), params.end(), a.epilogue[0].params);
  return a;
}

}  // namespace onnxbolt
