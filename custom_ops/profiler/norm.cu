// Norm: normalizations of rows.
#include <algorithm>

#include "profiler/problem.h"

namespace onnxbolt {
namespace profiler {

Norm::Norm(const NormDescription& description, size_t l2_bytes) : description_(description) {
  const int element = description_.element;
  const size_t columns = description_.norm.columns, count = description_.norm.rows * columns;
  for (Operand* operand : {&x_, &y_}) *operand = Describe(count, element);
  if (chain().tensors > 0) residual_ = Describe(count, element);
  if (description_.layers.stores) sum_ = Describe(count, element);
  for (int i = 0; i < chain().vectors; ++i) vectors_[i] = Describe(columns, kTypeF32);
  size_t bytes = 0;
  for (const Operand* operand : {&x_, &residual_, &y_, &sum_}) bytes += operand->stride;
  sets_ = SetsOf(bytes, l2_bytes);
  uint32_t seed = 0;
  Fill(x_, element, sets_, ++seed, 0.5f, 1.f);
  if (chain().tensors > 0) Fill(residual_, element, sets_, ++seed, 0.f, 1.f);
  for (int i = 0; i < chain().vectors; ++i) Fill(vectors_[i], kTypeF32, sets_, ++seed, 0.4f, 0.7f);
  for (Operand* operand : {&y_, &sum_}) Allocate(*operand, sets_);
  reference_ = AnswerOf(count);
  if (description_.layers.stores) sum_reference_ = AnswerOf(count);
  ComputeNorm(norm(0), element, chain(), description_.limits.rounding, reference_,
              description_.layers.stores ? &sum_reference_ : nullptr);
}

Arguments Norm::arguments(int set, int, int) const {
  Arguments arguments;
  arguments.norm = norm(set);
  return arguments;
}

void Norm::poison(cudaStream_t stream) const {
  for (const Operand* operand : {&y_, &sum_})
    if (operand->stride)
      Check(cudaMemsetAsync(operand->at(0), 0xff, operand->stride, stream), "cudaMemsetAsync");
}

Distance Norm::error() const {
  const Limits& limits = description_.limits;
  const Distance error = DistanceFrom(reference_, y_.at(0), description_.element, limits.output,
                                      limits.floor, y_.elements);
  if (!description_.layers.stores) return error;
  const Distance other = DistanceFrom(sum_reference_, sum_.at(0), description_.element,
                                      limits.element, limits.floor, sum_.elements);
  return {std::max(error.relative_l2, other.relative_l2), std::max(error.excess, other.excess)};
}

NormArguments Norm::norm(int set) const {
  NormArguments norm = description_.norm;
  norm.x = x_.at(set), norm.y = y_.at(set), norm.sum = sum_.at(set);
  norm.x_pitch = norm.y_pitch = norm.columns;
  for (int i = 0; i < kMaxVectors; ++i)
    norm.epilogue.vectors[i] = static_cast<const float*>(vectors_[i].at(set));
  norm.epilogue.tensors[0] = residual_.at(set);
  norm.epilogue.tensor_pitch[0] = norm.columns;
  return norm;
}

}  // namespace profiler
}  // namespace onnxbolt
