// GemmNorm: GEMMs whose rows are normalized.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "profiler/problem.h"

namespace onnxbolt {
namespace profiler {

GemmNorm::GemmNorm(const Description& description, bool centered, size_t l2_bytes)
    : description_(description) {
  const int element = description_.element;
  const size_t m = description_.conv.h, n = description_.conv.k, k = description_.conv.c;
  if (before().vectors + behind().vectors > kMaxVectors || behind().tensors > 0 ||
      behind().size != behind().vectors)
    throw Failure("vectors alone follow a normalization, as many as kernels take");
  x_ = Describe(m * k, element), weight_ = Describe(n * k, element);
  for (int i = 0; i < before().vectors + behind().vectors; ++i) vectors_[i] = Describe(n, kTypeF32);
  for (int i = 0; i < before().tensors; ++i) tensors_[i] = Describe(m * n, element);
  y_ = Describe(m * n, element);
  if (stores()) sum_ = Describe(m * n, element);
  size_t bytes = x_.stride + weight_.stride + y_.stride + sum_.stride;
  for (const Operand& tensor : tensors_) bytes += tensor.stride;
  sets_ = SetsOf(bytes, l2_bytes);
  fill();
  compute_reference(centered);
}

// As operands of Products.
void GemmNorm::fill() {
  const int element = description_.element;
  uint32_t seed = 0;
  const float deviation = 1.f / std::sqrt(static_cast<float>(description_.conv.c));
  Fill(x_, element, sets_, ++seed, 0.f, 1.f);
  Fill(weight_, element, sets_, ++seed, 0.f, deviation);
  for (Operand& tensor : tensors_)
    if (tensor.stride) Fill(tensor, element, sets_, ++seed, 0.f, 1.f);
  for (Operand& vector : vectors_)
    if (vector.stride) Fill(vector, kTypeF32, sets_, ++seed, 0.4f, 0.7f);
  for (Operand* operand : {&y_, &sum_}) Allocate(*operand, sets_);
}

void GemmNorm::compute_reference(bool centered) {
  const Limits& limits = description_.limits;
  const int element = description_.element;
  ConvArguments conv = description_.conv;
  conv.x = x_.at(0), conv.filter = weight_.at(0), conv.epilogue = epilogue(0);
  const size_t count = y_.elements;
  sum_reference_ = AnswerOf(count), reference_ = AnswerOf(count);
  ComputeReference(conv, element, before(), limits.rounding, nullptr, sum_reference_);
  NormArguments norm{};
  norm.rows = conv.h, norm.columns = conv.k, norm.centered = centered;
  norm.epsilon = description_.params[behind().first_param - 1];
  for (int i = 0; i < behind().vectors; ++i)
    norm.epilogue.vectors[i] = conv.epilogue.vectors[before().vectors + i];
  ComputeNormOf(sum_reference_, stores(), limits.element, norm, element, behind(), limits.rounding,
                reference_);
}

Arguments GemmNorm::arguments(int set, int, int) const {
  const ConvArguments& conv = description_.conv;
  Arguments arguments;
  arguments.gemm = {conv.h, conv.k, conv.c, x_.at(set),    weight_.at(set), y_.at(set),
                    conv.c, conv.c, conv.k, epilogue(set), sum_.at(set)};
  return arguments;
}

void GemmNorm::poison(cudaStream_t stream) const {
  for (const Operand* operand : {&y_, &sum_})
    if (operand->stride)
      Check(cudaMemsetAsync(operand->at(0), 0xff, operand->stride, stream), "cudaMemsetAsync");
}

Distance GemmNorm::error() const {
  const Limits& limits = description_.limits;
  const Distance error = DistanceFrom(reference_, y_.at(0), description_.output, limits.output,
                                      limits.floor, y_.elements);
  if (!stores()) return error;
  const Distance other = DistanceFrom(sum_reference_, sum_.at(0), description_.element,
                                      limits.element, limits.floor, sum_.elements);
  return {std::max(error.relative_l2, other.relative_l2), std::max(error.excess, other.excess)};
}

EpilogueArguments GemmNorm::epilogue(int set) const {
  EpilogueArguments epilogue;
  for (int i = 0; i < kMaxVectors; ++i)
    epilogue.vectors[i] = static_cast<const float*>(vectors_[i].at(set));
  for (int i = 0; i < before().tensors; ++i) {
    epilogue.tensors[i] = tensors_[i].at(set);
    epilogue.tensor_pitch[i] = description_.conv.k;
  }
  std::copy(std::begin(description_.params), std::end(description_.params), epilogue.params);
  return epilogue;
}

}  // namespace profiler
}  // namespace onnxbolt
