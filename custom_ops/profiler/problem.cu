#include "profiler/problem.h"

#include <algorithm>
#include <cmath>

namespace onnxbolt {
namespace profiler {
namespace {

constexpr int kMaxSets = 256;  // what is smaller than L2 / 256 takes as long as a launch does, wherever its operands are
constexpr int kFloat = 1;      // ONNX element type of vectors

// How much memory an operand takes in each set: whole lines, so that all sets are aligned alike.
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
  for (int set = 0; set < sets; ++set) FillNormal(operand.at(set), type, operand.elements, seed * kMaxSets + set, mean, deviation);
}

}  // namespace

Problem::Problem(const Description& description, size_t l2_bytes) : description_(description) {
  const ConvArguments& conv = description_.conv;
  const Chain& chain = description_.chain;
  const size_t depth = size_t(conv.r) * conv.s * (conv.c / conv.groups), outputs = size_t(description_.rows()) * conv.k;
  const int x_type = conv.x_planes ? conv.x_planes : description_.element;
  x_ = Describe(size_t(conv.n) * conv.h * conv.w * conv.c, x_type);
  filter_ = Describe(conv.k * depth, description_.element);
  y_ = Describe(outputs, description_.output);
  size_t bytes = x_.stride + filter_.stride + y_.stride;
  for (int i = 0; i < chain.tensors; ++i) bytes += (tensors_[i] = Describe(outputs, description_.element)).stride;
  for (int i = 0; i < chain.vectors; ++i) bytes += (vectors_[i] = Describe(conv.k, kFloat)).stride;
  // twice the cache: its replacement is not strictly the oldest line first
  sets_ = static_cast<int>(std::clamp<size_t>((2 * l2_bytes + bytes - 1) / bytes, 1, kMaxSets));

  // a sum of `depth` products has deviation 1; vectors scale or shift it by about as much
  Fill(x_, x_type, sets_, 1, 0.f, 1.f);
  Fill(filter_, description_.element, sets_, 2, 0.f, 1.f / std::sqrt(static_cast<float>(depth)));
  Allocate(y_, sets_);
  for (int i = 0; i < chain.tensors; ++i) Fill(tensors_[i], description_.element, sets_, 3 + i, 0.f, 1.f);
  for (int i = 0; i < chain.vectors; ++i) Fill(vectors_[i], kFloat, sets_, 3 + kMaxTensors + i, 0.4f, 0.7f);

  reference_ = Buffer(outputs * sizeof(float));
  ComputeReference(this->conv(0), description_.element, chain, static_cast<float*>(reference_.get()));
}

Arguments Problem::arguments(int set) const {
  Arguments arguments;
  arguments.conv = conv(set);
  if (description_.is_gemm) {
    const ConvArguments as = arguments.conv;
    arguments.gemm = {as.h, as.k, as.c, as.x, as.filter, as.y, as.c, as.c, as.k, as.epilogue};
  }
  return arguments;
}

void Problem::poison(cudaStream_t stream) const {
  Check(cudaMemsetAsync(y_.at(0), 0xff, y_.stride, stream), "cudaMemsetAsync");
}

double Problem::error() const {
  return RelativeError(y_.at(0), description_.output, static_cast<const float*>(reference_.get()), y_.elements);
}

ConvArguments Problem::conv(int set) const {
  ConvArguments conv = description_.conv;
  conv.x = x_.at(set), conv.filter = filter_.at(set), conv.y = y_.at(set);
  conv.epilogue = epilogue(set);
  return conv;
}

EpilogueArguments Problem::epilogue(int set) const {
  EpilogueArguments epilogue;
  for (int i = 0; i < kMaxVectors; ++i) epilogue.vectors[i] = static_cast<const float*>(vectors_[i].at(set));
  for (int i = 0; i < kMaxTensors; ++i) {
    epilogue.tensors[i] = tensors_[i].at(set);
    epilogue.tensor_pitch[i] = tensors_[i].buffer.get() ? description_.conv.k : 0;
  }
  std::copy_n(description_.params, kMaxParams, epilogue.params);
  return epilogue;
}

}  // namespace profiler
}  // namespace onnxbolt
