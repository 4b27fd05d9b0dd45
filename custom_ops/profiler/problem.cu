// Products: GEMMs and convolutions, and what all problems share.
#include "profiler/problem.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ops/conv/arguments.h"
#include "ops/gemm_chain/arguments.h"
#include "runtime/elements.h"
#include "runtime/integers.h"

namespace onnxbolt {
namespace profiler {
namespace {

constexpr int kMaxSets =
    256;  // operands below L2 / 256 take as long as a launch does, wherever they are

// Values of one layer's filter that an output meets.
size_t Depth(const ConvArguments& conv) { return size_t(conv.r) * conv.s * (conv.c / conv.groups); }

// Elements of y of a transposed convolution.
size_t PixelElements(const ConvArguments& conv) {
  const PhasedPixels& pixels = conv.pixels;
  return size_t(conv.n) * pixels.d * pixels.height * pixels.width * (conv.k / pixels.count());
}

Answer MeansOf(const ConvArguments& conv, const Answer& values, float accumulation) {
  Answer means = AnswerOf(size_t(conv.n) * conv.k);
  ComputeMeans(conv, values, accumulation, means);
  return means;
}

}  // namespace

namespace {

// The first output of each class along an axis: outputs whose first taps lie in front of the image,
// those whose last taps lie behind it, each a class, and all between them; each output a class
// where these meet (docs/decisions/quantized.md).
std::vector<int> FirstOutputs(int outputs, int size, int taps, int stride, int pad, int dilation) {
  int in_front = 0, behind = 0;
  for (int output = 0; output < outputs; ++output) {
    const int first = output * stride - pad;
    in_front += first < 0, behind += first + dilation * (taps - 1) >= size;
  }
  std::vector<int> firsts;
  const bool meet = in_front + behind >= outputs;
  for (int output = 0; output < outputs; ++output) {
    if (meet || output <= in_front || output >= outputs - behind) firsts.push_back(output);
  }
  return firsts;
}

BorderClasses ClassesOf(const ConvArguments& conv) {
  if (!conv.pad_top && !conv.pad_left && !conv.pad_bottom && !conv.pad_right) return {};
  return {FirstOutputs(conv.p, conv.h, conv.r, conv.stride_h, conv.pad_top, conv.dilation_h),
          FirstOutputs(conv.q, conv.w, conv.s, conv.stride_w, conv.pad_left, conv.dilation_w)};
}

}  // namespace

Operand Describe(size_t elements, int type) {
  constexpr size_t kLine = 256;
  Operand operand;
  operand.elements = elements;
  operand.stride = (elements * ElementSize(type) + kLine - 1) / kLine * kLine;
  return operand;
}

void Allocate(Operand& operand, int sets) { operand.buffer = Buffer(operand.stride * sets); }

void Fill(Operand& operand, int type, int sets, uint32_t seed, float mean, float deviation) {
  Allocate(operand, sets);
  for (int set = 0; set < sets; ++set)
    FillNormal(operand.at(set), type, operand.elements, seed * kMaxSets + set, mean, deviation);
}

Answer AnswerOf(size_t count) {
  return {Buffer(count * sizeof(float)), Buffer(count * sizeof(float))};
}

// Twice the cache: its replacement is not strictly the oldest line first.
int SetsOf(size_t bytes, size_t l2_bytes) {
  return static_cast<int>(std::clamp<size_t>((2 * l2_bytes + bytes - 1) / bytes, 1, kMaxSets));
}

ConvArguments Description::layer(int index) const {
  if (index == 0) return conv;
  ConvArguments image{};
  image.r = image.s = image.groups = 1;
  image.stride_h = image.stride_w = image.dilation_h = image.dilation_w = 1;
  image.n = conv.n, image.h = image.p = conv.p, image.w = image.q = conv.q;
  image.c = columns[index - 1], image.k = columns[index];
  image.x_pitch = image.c, image.y_pitch = image.k;
  return image;
}

Products::Products(const Description& description, size_t l2_bytes) : description_(description) {
  const size_t bytes = describe_operands();
  sets_ = SetsOf(bytes, l2_bytes);
  fill();
  fill_offsets();
  clear_taps();
  pad_filter();
  repeat_filter();
  reference_ = compute_reference();
  if (values_.elements > 0) {  // all steps but the last one, which makes codes
    Chain chain = description_.layers.chains[0];
    --chain.size;
    stored_reference_ = compute_layer(conv(0, 0), chain, nullptr);
  }
  if (!description_.both()) return;
  ConvArguments rows = conv(0, 0);
  rows.y_nchw = rows.padding = 0;
  stored_reference_ = compute_layer(rows, description_.layers.chains[0], nullptr);
}

size_t Products::describe_operands() {
  const ConvArguments& first = description_.conv;
  const size_t rows = description_.rows();
  x_ = Describe(size_t(first.n) * first.h * first.w * first.c,
                first.x_nchw ? first.x_nchw : description_.element);
  size_t bytes = x_.stride;
  for (int layer = 0; layer < description_.layers.count; ++layer) {
    const Chain& chain = description_.layers.chains[layer];
    LayerOperands& operands = layers_[layer];
    const size_t columns = description_.columns[layer];
    const bool is_last = layer == description_.last();
    operands.y =
        Describe((is_last ? description_.written_rows() : rows) * (columns - first.padding),
                 is_last ? description_.output : description_.element);
    if (first.pixels.apart()) operands.y = Describe(PixelElements(first), description_.output);
    const bool is_output = is_last || (layer == 0 && description_.layers.stores);
    bytes +=
        is_output ? operands.y.stride : 0;  // one kernel for all layers touches none of the others
    bytes += (operands.filter = Describe(description_.batches * columns * (1 + chain.gated) *
                                             Depth(description_.layer(layer)),
                                         description_.element))
                 .stride;
    for (int i = 0; i < chain.tensors; ++i)
      bytes += (operands.tensors[i] =
                    Describe(rows * columns, chain.added ? chain.added : description_.element))
                   .stride;
    for (int i = 0; i < chain.vectors; ++i)
      bytes += (operands.vectors[i] = Describe(columns, kTypeF32)).stride;
    const RotationArguments& rotation = description_.rotation;
    if (chain.rotated)
      bytes += (operands.rotation =
                    Describe(size_t(rotation.rows) * rotation.width, description_.element))
                   .stride;
  }
  if (description_.both()) bytes += (rows_ = Describe(rows * first.k, description_.element)).stride;
  if (const int stored = description_.layers.chains[0].stored)
    bytes += (values_ = Describe(rows * first.k, stored)).stride;
  if (description_.zero() != 0) {
    classes_ = ClassesOf(first);
    bytes += (offsets_ = Describe(size_t(classes_.count()) * first.k, kTypeI32)).stride;
  }
  return bytes;
}

// A sum of products has deviation 1 where its rows have; vectors scale or shift it by about as
// much. Codes of integers have a third of their range as deviation, and what scales their sums
// gives these the deviation of some 20 codes of the result.
void Products::fill() {
  uint32_t seed = 0;
  if (description_.of_codes()) return fill_codes();
  Fill(x_, description_.conv.x_nchw ? description_.conv.x_nchw : description_.element, sets_,
       ++seed, 0.f, 1.f);
  for (int layer = 0; layer < description_.layers.count; ++layer) {
    const Chain& chain = description_.layers.chains[layer];
    LayerOperands& operands = layers_[layer];
    Allocate(operands.y, sets_);
    const float deviation = 1.f / std::sqrt(static_cast<float>(Depth(description_.layer(layer))));
    Fill(operands.filter, description_.element, sets_, ++seed, 0.f, deviation);
    for (int i = 0; i < chain.tensors; ++i)
      Fill(operands.tensors[i], description_.element, sets_, ++seed, 0.f, 1.f);
    for (int i = 0; i < chain.vectors; ++i)
      Fill(operands.vectors[i], kTypeF32, sets_, ++seed, 0.4f, 0.7f);
    if (chain.rotated) Fill(operands.rotation, description_.element, sets_, ++seed, 0.f, 0.7f);
  }
  if (description_.both()) Allocate(rows_, sets_);
}

void Products::fill_codes() {
  uint32_t seed = 0;
  const int element = description_.element;
  const Chain& chain = description_.layers.chains[0];
  LayerOperands& operands = layers_[0];
  const bool floats = element == kTypeE4M3;
  const float middle = element == kTypeU8 ? 128.f : 0.f, spread = floats ? 1.f : 48.f,
              sums = spread * spread * std::sqrt(static_cast<float>(Depth(description_.conv)));
  Fill(x_, element, sets_, ++seed, middle, spread);
  Fill(operands.filter, WeightOf(element), sets_, ++seed, 0.f, spread);
  for (int i = 0; i < chain.tensors; ++i)
    Fill(operands.tensors[i], chain.added ? chain.added : element, sets_, ++seed,
         chain.added ? 0.f : middle, chain.added ? 1.f : spread);
  for (int i = 0; i < chain.vectors; ++i)
    Fill(operands.vectors[i], kTypeF32, sets_, ++seed, i == 0 ? 20.f / sums : 0.4f,
         i == 0 ? 5.f / sums : 0.7f);
  Allocate(operands.y, sets_);
  if (values_.elements > 0) Allocate(values_, sets_);
}

void Products::fill_offsets() {
  if (offsets_.elements == 0) return;
  Allocate(offsets_, sets_);
  for (int set = 0; set < sets_; ++set)
    ComputeOffsets(conv(0, set), description_.element, description_.zero(), classes_,
                   offsets_.at(set));
}

// Writes the zeros that the last phases of a transposed convolution meet at the first tap.
void Products::clear_taps() {
  const ConvArguments& conv = description_.conv;
  const PhasedPixels& pixels = conv.pixels;
  if (!pixels.apart()) return;
  const int phases = pixels.count(), width = conv.k / conv.groups / phases;
  const size_t tap = conv.c / conv.groups * ElementSize(description_.element),
               row = size_t(conv.s) * tap, pitch = size_t(conv.r) * row;
  const auto clear = [&](char* filters, size_t bytes) {
    Check(cudaMemset2D(filters, pitch, 0, bytes, width), "cudaMemset2D");
  };
  for (int set = 0; set < sets_; ++set) {
    for (int block = 0; block < conv.groups * phases; ++block) {
      char* filters = static_cast<char*>(layers_[0].filter.at(set)) + block * width * pitch;
      const int phase = block % phases;
      if (phase / pixels.w % pixels.h >= pixels.h - pixels.zeros_h) clear(filters, row);
      for (int r = 0; r < conv.r && phase % pixels.w >= pixels.w - pixels.zeros_w; ++r)
        clear(filters + r * row, tap);
    }
  }
}

// The first filter of GEMMs as kernels take it that read rows of any length: rows of 16 bytes,
// zeros at their ends.
void Products::pad_filter() {
  const size_t size = ElementSize(description_.element), row = Depth(description_.conv) * size,
               pitch = RoundUp(row, 16);
  if (!description_.is_gemm || description_.batches > 1 || pitch == row) return;
  const size_t rows = description_.columns[0];
  padded_filter_ = Describe(rows * pitch / size, description_.element);
  Allocate(padded_filter_, sets_);
  Check(cudaMemset(padded_filter_.at(0), 0, padded_filter_.stride * sets_), "cudaMemset");
  for (int set = 0; set < sets_; ++set)
    Check(cudaMemcpy2D(padded_filter_.at(set), pitch, layers_[0].filter.at(set), row, row, rows,
                       cudaMemcpyDefault),
          "cudaMemcpy2D");
}

// All batches have equal filters, so that the reference, which takes all rows for one product's,
// needs one, and each kernel reads as many as it has to.
void Products::repeat_filter() {
  const size_t bytes =
      layers_[0].filter.elements / description_.batches * ElementSize(description_.element);
  for (int set = 0; set < sets_; ++set) {
    char* const first = static_cast<char*>(layers_[0].filter.at(set));
    for (int batch = 1; batch < description_.batches; ++batch)
      Check(cudaMemcpy(first + batch * bytes, first, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }
}

// Layer by layer; what lies between two is rounded to the element type, as the kernel and the
// layers one by one do.
Answer Products::compute_reference() {
  Buffer rows;
  Answer between;
  const float* errors = nullptr;  // the errors of the layer before
  for (int layer = 0;; ++layer) {
    ConvArguments conv = this->conv(layer, 0);
    if (layer > 0) conv.x = rows.get();
    Answer result = compute_layer(conv, description_.layers.chains[layer], errors);
    if (conv.pixels.apart()) {
      Answer pixels = AnswerOf(PixelElements(conv));
      ComputePixels(conv, result, pixels);
      return pixels;
    }
    if (layer == description_.last())
      return description_.layers.means ? MeansOf(conv, result, description_.limits.mean)
                                       : std::move(result);
    const size_t count = size_t(description_.rows()) * conv.k;
    rows = Buffer(count * ElementSize(description_.element));
    RoundTo(rows.get(), description_.element, static_cast<const float*>(result.values.get()),
            count);
    Answer& kept = layer == 0 && description_.layers.stores ? stored_reference_ : between;
    kept = std::move(result);
    errors = static_cast<const float*>(kept.errors.get());
  }
}

Answer Products::compute_layer(const ConvArguments& conv, const Chain& chain,
                               const float* errors) const {
  Answer answer = AnswerOf(size_t(conv.n) * conv.p * conv.q * conv.k);
  ComputeReference(conv, description_.element, chain, description_.limits.rounding, errors, answer);
  return answer;
}

Arguments Products::arguments(int set, int first, int last) const {
  Arguments arguments;
  const ConvArguments conv = this->conv(first, set);
  const bool several = last > first;
  if (several && (description_.is_gemm || description_.layers.take_rows(first, last))) {
    arguments.chain = chain(set, first, last);
  } else if (description_.is_gemm) {
    arguments.gemm = {conv.h, conv.k, conv.c, conv.x, conv.filter,
                      conv.y, conv.c, conv.c, conv.k, conv.epilogue};
    if (const int batches = description_.batches; batches > 1) {
      const int64_t m = conv.h / batches;
      arguments.gemm.m = m, arguments.gemm.batches = batches;
      arguments.gemm.a_stride = m * conv.c, arguments.gemm.b_stride = int64_t(conv.k) * conv.c;
    }
    if (first == 0 && padded_filter_.elements > 0)
      arguments.gemm.b = padded_filter_.at(set), arguments.gemm.ldb = padded_pitch();
    if (description_.of_codes())
      arguments.quantized_gemm = {GemmArguments(arguments.gemm), offsets(set), values_.at(set)};
  } else if (several) {
    arguments.conv_chain = {conv, chain(set, first, last)};
    arguments.conv_chain.conv.y = arguments.conv_chain.chain.d,
    arguments.conv_chain.conv.y_pitch = arguments.conv_chain.chain.ldd;
  } else if (description_.of_codes()) {
    arguments.quantized_conv = {conv, offsets(set), values_.at(set)};
  } else {
    arguments.conv = conv;
  }
  return arguments;
}

OffsetArguments Products::offsets(int set) const {
  return {static_cast<const int32_t*>(offsets_.at(set)), classes_.count(),
          static_cast<int>(description_.zero())};
}

void Products::poison(cudaStream_t stream) const {
  for (int layer = 0; layer < description_.layers.count; ++layer)
    Check(cudaMemsetAsync(layers_[layer].y.at(0), 0xff, layers_[layer].y.stride, stream),
          "cudaMemsetAsync");
  if (values_.elements > 0)
    Check(cudaMemsetAsync(values_.at(0), 0xff, values_.stride, stream), "cudaMemsetAsync");
  if (description_.both())
    Check(cudaMemsetAsync(rows_.at(0), 0xff, rows_.stride, stream), "cudaMemsetAsync");
}

Distance Products::error() const {
  const Limits& limits = description_.limits;
  const Operand &y = layers_[description_.last()].y, &stored = values_.elements > 0  ? values_
                                                               : description_.both() ? rows_
                                                                                     : layers_[0].y;
  const Distance error = DistanceFrom(reference_, y.at(0), description_.output, limits.output,
                                      limits.floor, y.elements);
  const int values = description_.layers.chains[0].stored;
  if (!description_.layers.stores && !values) return error;
  const Distance other =
      DistanceFrom(stored_reference_, stored.at(0), values ? values : description_.element,
                   limits.element, limits.floor, stored.elements);
  return {std::max(error.relative_l2, other.relative_l2), std::max(error.excess, other.excess)};
}

ConvArguments Products::conv(int layer, int set) const {
  ConvArguments conv = description_.layer(layer);
  conv.x = input(layer, set), conv.filter = layers_[layer].filter.at(set),
  conv.y = layers_[layer].y.at(set);
  if (description_.both()) conv.stored = rows_.at(set);
  conv.epilogue = epilogue(layer, set);
  return conv;
}

// The parameters of all its layers are with the first one's epilogue.
ChainArguments Products::chain(int set, int first, int last) const {
  const ConvArguments begin = description_.layer(first);
  ChainArguments chain{};
  chain.m = description_.rows(), chain.layers = last - first + 1;
  chain.k = Depth(begin), chain.lda = begin.x_pitch;
  chain.a = input(first, set), chain.d = layers_[last].y.at(set);
  chain.ldd = description_.columns[last];
  chain.stored = description_.layers.stores ? layers_[0].y.at(set) : nullptr;
  for (int layer = 0; layer < chain.layers; ++layer) {
    chain.n[layer] = description_.columns[first + layer];
    chain.weights[layer] = layers_[first + layer].filter.at(set);
    chain.epilogue[layer] = epilogue(first + layer, set);
  }
  if (first == 0 && padded_filter_.elements > 0) {
    chain.weights[0] = padded_filter_.at(set);
    chain.ldw = padded_pitch();
  }
  return chain;
}

EpilogueArguments Products::epilogue(int layer, int set) const {
  const LayerOperands& operands = layers_[layer];
  EpilogueArguments epilogue;
  for (int i = 0; i < kMaxVectors; ++i)
    epilogue.vectors[i] = static_cast<const float*>(operands.vectors[i].at(set));
  for (int i = 0; i < kMaxTensors; ++i) {
    epilogue.tensors[i] = operands.tensors[i].at(set);
    epilogue.tensor_pitch[i] = operands.tensors[i].buffer.get() ? description_.columns[layer] : 0;
  }
  epilogue.rotation = description_.rotation;
  epilogue.rotation.table = operands.rotation.at(set);
  std::copy(description_.params + description_.layers.chains[layer].first_param,
            std::end(description_.params), epilogue.params);
  return epilogue;
}

}  // namespace profiler
}  // namespace onnxbolt
