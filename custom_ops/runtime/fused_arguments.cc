// How a node's inputs become its kernels' arguments, kind by kind.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>
#include <type_traits>

#include "runtime/fused_kernel.h"

namespace onnxbolt {
namespace {

using ort::Shape;
using ort::ToString;

void RequireShape(size_t input, const Shape& shape, const Shape& expected) {
  if (shape == expected) return;
  throw ort::Error(ort::kInvalidArgument, "input " + std::to_string(input) + " has shape " +
                                              ToString(shape) + ", expected " + ToString(expected));
}

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
  if (chain.layers == kMaxLayers)
    throw ort::Error(ort::kInvalidArgument, "more than " + std::to_string(kMaxLayers) + " layers");
  const int64_t n = shape.empty() ? 0 : shape[0], k = chain.n[chain.layers - 1];
  RequireShape(input, shape, is_conv ? Shape{n, 1, 1, k} : Shape{n, k});
  chain.n[chain.layers] = n;
  chain.weights[chain.layers++] = data;
}

// `like` with another number of columns.
Shape RowsOf(const Shape& like, int64_t columns) {
  Shape shape = like;
  shape.back() = columns;
  return shape;
}

// A slice of at most `count`, so that the next one begins at a multiple of 16 bytes as well.
int64_t SliceOf(int64_t count) { return count > 8 ? count / 8 * 8 : std::max<int64_t>(count, 1); }

// Whether pixels are rows of a product as they lie.
bool IsProduct(const ConvArguments& conv) {
  return conv.r == 1 && conv.s == 1 && conv.p == conv.h && conv.q == conv.w && conv.pad_top == 0 &&
         conv.pad_left == 0 && conv.groups == 1;
}

// `data` behind so many elements of an ONNX type.
template <class Data>
Data* Behind(Data* data, int64_t elements, int type) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  return static_cast<Byte*>(data) + elements * BytesOf(type);
}

int AsInt(int64_t value) {
  if (value > INT_MAX)
    throw ort::Error(ort::kInvalidArgument,
                     "a dimension of " + std::to_string(value) + " is above 2^31 - 1");
  return static_cast<int>(value);
}

}  // namespace

EpilogueArguments FusedKernel::ReadEpilogue(Buffers& buffers, const Shape& y) const {
  EpilogueArguments epilogue;
  std::copy(params_.begin(), params_.end(), epilogue.params);
  size_t vectors = 0, tensors = 0;
  for (size_t i = 0; op_.operands[i] && op_.operands[i] != 'y'; ++i) {
    const size_t index = FirstOperand(op_.kind) + i;
    const OrtValue* value = buffers.Input(index);
    const bool vector = op_.operands[i] == 'v';
    RequireShape(index, ort::ShapeOf(value), vector ? Shape{y.back()} : y);
    if (vector) {
      epilogue.vectors[vectors++] = static_cast<const float*>(buffers.Read(value, kTypeF32));
    } else {
      epilogue.tensor_pitch[tensors] = y.back();
      epilogue.tensors[tensors++] = buffers.Read(value, op_.element);
    }
  }
  return epilogue;
}

// The output, or the node's channels of it. What earlier nodes wrote is there already, but where
// the output is the graph's: ORT makes that one anew.
void FusedKernel::PlaceOutput(Tensors* tensors) const {
  Buffers& buffers = *tensors->buffers;
  const Shape whole = geometry_->Whole(Written(op_, tensors->y_shape));
  void* const data = buffers.Write(0, op_.to_nchw ? geometry_->Planes(whole) : whole, op_.output);
  if (const size_t input = WrittenInto(op_); input != kNowhere) {
    const OrtValue* before = buffers.Input(input);
    RequireShape(input, ort::ShapeOf(before), whole);
    if (ort::DataOf(before) != data)
      buffers.Copy(data, ort::DataOf(before), Elements(whole) * BytesOf(op_.output));
  }
  tensors->y_data = Behind(data, geometry_->before, op_.output);
  tensors->y_pitch = whole.back();
}

void FusedKernel::Compute(OrtKernelContext* context) const {
  Buffers buffers(context, allocator_.get());
  Tensors tensors{};
  tensors.buffers = &buffers;
  tensors.x = buffers.Input(0);
  tensors.x_shape = op_.planes ? ChannelsLast(ort::ShapeOf(tensors.x)) : ort::ShapeOf(tensors.x);
  tensors.x_pitch = tensors.x_shape.empty() ? 0 : tensors.x_shape.back();
  tensors.x_shape = geometry_->Channels(std::move(tensors.x_shape));
  tensors.x_data = Behind(buffers.Read(tensors.x, XType()), geometry_->begin, op_.element);
  if (HasWeight(op_.kind)) {
    const OrtValue *first = buffers.Input(1), *last = buffers.Input(LastWeight(op_));
    tensors.weight_shape = WeightShape(op_, ort::ShapeOf(first), ort::ShapeOf(last));
    tensors.weight_data = buffers.Read(last, op_.element);
  }
  tensors.y_shape = tensors.whole_y = geometry_->Output(tensors.x_shape, tensors.weight_shape);
  if (!IsChain(op_.kind) && op_.kind != Kind::kSqueezeExcite)
    tensors.epilogue = ReadEpilogue(buffers, tensors.y_shape);
  PlaceOutput(&tensors);
  if (op_.stores) {
    tensors.stored_channels = ort::ShapeOf(buffers.Input(1))[0];
    tensors.stored_data =
        buffers.Write(1, RowsOf(tensors.y_shape, tensors.stored_channels), op_.element);
  }
  if (Elements(Written(op_, tensors.y_shape)) == 0) return;
  RunInSlices(context, std::move(tensors));
  buffers.Finish();
}

// Kernels count in 32 bits, some of them elements or bytes of a whole tensor, and say themselves
// what is too large for them. Then rows of products, else images, are launched slice by slice.
void FusedKernel::RunInSlices(OrtKernelContext* context, Tensors whole) const {
  if (IsGemm(op_.kind) || op_.kind == Kind::kElementwise) {
    const int64_t rows = whole.rows();
    whole.x_shape = {rows, whole.x_shape.back()}, whole.y_shape = {rows, whole.y_shape.back()};
  }
  const int64_t total = whole.y_shape[0], rows = whole.rows() / total;
  int64_t count = std::clamp<int64_t>(INT_MAX / rows, 1, total);
  if (count < total) count = SliceOf(count);
  const char* const refusal = Run(context, Slice(whole, 0, count));
  for (const char* again = refusal; again; again = Run(context, Slice(whole, 0, count))) {
    if (count == 1)
      throw ort::Error(ort::kRuntimeException, Describe(Slice(whole, 0, count)) + ": " + refusal);
    count = SliceOf(count / 2);
  }
  for (int64_t first = count; first < total; first += count) {
    const Tensors slice = Slice(whole, first, std::min(count, total - first));
    if (const char* error = Run(context, slice))
      throw ort::Error(ort::kRuntimeException, Describe(slice) + ": " + error);
  }
}

FusedKernel::Tensors FusedKernel::Slice(const Tensors& whole, int64_t first, int64_t count) const {
  Tensors slice = whole;
  const auto pixels = [](const Shape& shape) {
    return Elements(Shape(shape.begin() + 1, shape.end() - 1));
  };
  const int64_t rows = pixels(whole.y_shape),
                y_channels =
                    op_.to_nchw ? whole.y_shape.back() - geometry_->padding : whole.y_pitch;
  slice.first_row = first * rows;
  slice.x_data = Behind(whole.x_data, first * pixels(whole.x_shape) * whole.x_pitch, XType());
  slice.y_data =
      Behind(whole.y_data, first * pixels(Written(op_, whole.y_shape)) * y_channels, op_.output);
  if (whole.stored_data)
    slice.stored_data =
        Behind(whole.stored_data, slice.first_row * whole.stored_channels, op_.element);
  for (int i = 0; i < kMaxTensors; ++i) {
    const void*& tensor = slice.epilogue.tensors[i];
    if (tensor)
      tensor = Behind(tensor, slice.first_row * whole.epilogue.tensor_pitch[i], op_.element);
  }
  slice.x_shape[0] = slice.y_shape[0] = count;
  return slice;
}

const char* FusedKernel::Run(OrtKernelContext* context, const Tensors& tensors) const {
  if (op_.kind == Kind::kGemm) return RunGemm(context, tensors);
  if (op_.kind == Kind::kGemmChain) return RunChain(context, tensors);
  if (op_.kind == Kind::kConvChain) return RunConvChain(context, tensors);
  if (op_.kind == Kind::kSqueezeExcite) return RunSqueezeExcite(context, tensors);
  if (IsLayout(op_.kind)) return RunLayout(context, tensors);
  if (op_.kind == Kind::kElementwise) return RunElementwise(context, tensors);
  if (op_.kind == Kind::kResize) return RunResize(context, tensors);
  return IsConv(op_.kind) ? RunConv(context, tensors) : RunPool(context, tensors);
}

const char* FusedKernel::RunGemm(OrtKernelContext* context, const Tensors& t) const {
  const int64_t n = t.weight_shape[0], k = t.x_shape.back(),
                pitch = t.weight_shape[1];  // zeros may stand behind the weight's k values
  const GemmArguments arguments{t.rows(), n,         k,     t.x_data,  t.weight_data,
                                t.y_data, t.x_pitch, pitch, t.y_pitch, t.epilogue};
  return LaunchRow(context, t, &arguments);
}

ChainArguments FusedKernel::ReadChain(const Tensors& t) const {
  Buffers& buffers = *t.buffers;
  ChainArguments a{};
  a.m = t.rows(), a.lda = t.x_pitch, a.ldd = t.y_pitch;
  a.a = t.x_data, a.d = t.y_data, a.stored = t.stored_data;
  BeginLayers(a, buffers.Input(1), buffers.Read(buffers.Input(1), op_.element));
  size_t vectors = 0, tensors = 0;
  for (size_t i = 0; op_.operands[i] && op_.operands[i] != 'y'; ++i) {
    const size_t index = FirstOperand(op_.kind) + i;
    const OrtValue* value = buffers.Input(index);
    EpilogueArguments& epilogue = a.epilogue[a.layers - 1];
    if (op_.operands[i] == 'w') {
      AddLayer(a, index, value, buffers.Read(value, op_.element), IsConv(op_.kind));
      vectors = 0;
    } else if (op_.operands[i] == 'v') {
      RequireShape(index, ort::ShapeOf(value), {a.n[a.layers - 1]});
      epilogue.vectors[vectors++] = static_cast<const float*>(buffers.Read(value, kTypeF32));
    } else {  // of one layer alone
      const int64_t pitch = a.n[a.layers - 1];
      RequireShape(index, ort::ShapeOf(value), RowsOf(t.whole_y, pitch));
      epilogue.tensor_pitch[tensors] = pitch;
      epilogue.tensors[tensors++] =
          Behind(buffers.Read(value, op_.element), t.first_row * pitch, op_.element);
    }
  }
  std::copy(params_.begin(), params_.end(), a.epilogue[0].params);
  return a;
}

const char* FusedKernel::RunChain(OrtKernelContext* context, const Tensors& t) const {
  constexpr int64_t kMostPadding =
      7;  // zeros that make the first weight's rows multiples of 16 bytes
  ChainArguments arguments = ReadChain(t);
  arguments.ldw = arguments.k, arguments.k = t.x_shape.back();
  const int64_t padding = arguments.ldw - arguments.k;
  if (padding < 0 || padding > kMostPadding)
    RequireShape(1, ort::ShapeOf(t.buffers->Input(1)), {arguments.n[0], arguments.k});
  return LaunchRow(context, t, &arguments);
}

ConvArguments FusedKernel::ReadConv(const Tensors& t) const {
  const Window window = geometry_->WindowOver(t.x_shape, t.weight_shape);
  const Image x(t.x_shape), y(t.y_shape);
  ConvArguments a{};
  a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
  a.q = AsInt(y.w), a.k = AsInt(y.c);
  a.r = AsInt(window.kernel[0]), a.s = AsInt(window.kernel[1]);
  a.pad_top = AsInt(window.begin[0]), a.pad_left = AsInt(window.begin[1]);
  a.pad_bottom = AsInt(window.end[0]), a.pad_right = AsInt(window.end[1]);
  a.stride_h = AsInt(window.stride[0]), a.stride_w = AsInt(window.stride[1]);
  a.dilation_h = AsInt(window.dilation[0]), a.dilation_w = AsInt(window.dilation[1]);
  a.groups = AsInt(geometry_->groups);
  a.x = t.x_data, a.filter = t.weight_data, a.y = t.y_data;
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  a.epilogue = t.epilogue;
  a.x_planes = op_.planes, a.y_planes = op_.to_nchw;
  return a;
}

const char* FusedKernel::RunConv(OrtKernelContext* context, const Tensors& t) const {
  ConvArguments arguments = ReadConv(t);
  arguments.stored = t.stored_data, arguments.padding = AsInt(geometry_->padding);
  return LaunchRow(context, t, &arguments);
}

const char* FusedKernel::RunConvChain(OrtKernelContext* context, const Tensors& t) const {
  ConvChainArguments arguments{ReadConv(t), ReadChain(t)};
  arguments.conv.k = AsInt(arguments.chain.n[0]);
  arguments.conv.filter = arguments.chain.weights[0];
  arguments.conv.epilogue = arguments.chain.epilogue[0];
  if (!TakesRows(op_)) return LaunchRow(context, t, &arguments);
  if (!IsProduct(arguments.conv))
    throw ort::Error(
        ort::kInvalidArgument,
        "only a 1x1 convolution of every pixel stores its result, or has residuals, before the next");
  return LaunchRow(context, t, &arguments.chain);
}

const char* FusedKernel::RunPool(OrtKernelContext* context, const Tensors& t) const {
  const Window window = geometry_->WindowOver(t.x_shape, {});
  const Image x(t.x_shape), y(t.y_shape);
  PoolArguments a{};
  a.kind = op_.kind == Kind::kMaxPool ? PoolKind::kMax : PoolKind::kAverage;
  a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
  a.q = AsInt(y.w);
  a.window_h = AsInt(window.kernel[0]), a.window_w = AsInt(window.kernel[1]);
  a.pad_top = AsInt(window.begin[0]), a.pad_left = AsInt(window.begin[1]);
  a.pad_bottom = AsInt(window.end[0]), a.pad_right = AsInt(window.end[1]);
  a.stride_h = AsInt(window.stride[0]), a.stride_w = AsInt(window.stride[1]);
  a.dilation_h = AsInt(window.dilation[0]), a.dilation_w = AsInt(window.dilation[1]);
  a.count_include_pad = geometry_->count_include_pad;
  a.x = t.x_data, a.y = t.y_data;
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  return LaunchRow(context, t, &a);
}

// Inputs: x, the first weight and its bias, the second weight and its bias.
const char* FusedKernel::RunSqueezeExcite(OrtKernelContext* context, const Tensors& t) const {
  const Image x(t.x_shape);
  const int64_t squeezed = t.weight_shape[1];
  Buffers& buffers = *t.buffers;
  const OrtValue *squeeze = buffers.Input(1), *squeeze_bias = buffers.Input(2),
                 *excite_bias = buffers.Input(4);
  RequireShape(1, ort::ShapeOf(squeeze), {squeezed, x.c});
  RequireShape(2, ort::ShapeOf(squeeze_bias), {squeezed});
  RequireShape(4, ort::ShapeOf(excite_bias), {x.c});
  SqueezeExciteArguments a{};
  a.n = AsInt(x.n), a.pixels = AsInt(x.h * x.w), a.channels = AsInt(x.c),
  a.squeezed = AsInt(squeezed);
  a.x = t.x_data, a.squeeze = buffers.Read(squeeze, op_.element), a.excite = t.weight_data,
  a.y = t.y_data;
  a.squeeze_bias = static_cast<const float*>(buffers.Read(squeeze_bias, kTypeF32));
  a.excite_bias = static_cast<const float*>(buffers.Read(excite_bias, kTypeF32));
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  std::copy(params_.begin(), params_.end(), a.step_params);
  return LaunchRow(context, t, &a);
}

const char* FusedKernel::RunLayout(OrtKernelContext* context, const Tensors& t) const {
  const bool to_last = op_.kind == Kind::kToNhwc;
  const Shape &first = to_last ? t.x_shape : t.y_shape, &last = to_last ? t.y_shape : t.x_shape;
  LayoutArguments a{};
  a.to_last = to_last;
  a.n = AsInt(first[0]), a.channels = AsInt(first[1]), a.stored = AsInt(last.back());
  a.pixels = AsInt(Elements(first) / (first[0] * first[1]));
  a.x = t.x_data, a.y = t.y_data;
  return LaunchRow(context, t, &a);
}

const char* FusedKernel::RunResize(OrtKernelContext* context, const Tensors& t) const {
  const Image x(t.x_shape), y(t.y_shape);
  const Resizing& resizing = geometry_->resizing;
  ResizeArguments a{};
  a.mode = static_cast<ResizeMode>(resizing.sampling[0]);
  a.coordinates = static_cast<Coordinates>(resizing.sampling[1]),
  a.rounding = static_cast<Rounding>(resizing.sampling[2]);
  a.cubic_coeff_a = resizing.cubic_coeff_a, a.exclude_outside = resizing.exclude_outside;
  a.n = AsInt(x.n), a.h = AsInt(x.h), a.w = AsInt(x.w), a.c = AsInt(x.c), a.p = AsInt(y.h),
  a.q = AsInt(y.w);
  a.scale_h = resizing.Scale(0, x.h), a.scale_w = resizing.Scale(1, x.w);
  a.x = t.x_data, a.y = t.y_data;
  a.x_pitch = t.x_pitch, a.y_pitch = t.y_pitch;
  return LaunchRow(context, t, &a);
}

const char* FusedKernel::RunElementwise(OrtKernelContext* context, const Tensors& t) const {
  const ElementwiseArguments arguments{
      t.rows(), AsInt(t.x_shape.back()), t.x_data, t.y_data, t.x_pitch, t.y_pitch, t.epilogue};
  return LaunchRow(context, t, &arguments);
}

}  // namespace onnxbolt
