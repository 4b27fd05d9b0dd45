// Attention: a problem of scaled dot-product attention.
#include <cmath>

#include "profiler/problem.h"

namespace onnxbolt {
namespace profiler {
namespace {

// Dense queries, keys, values or results [batch, positions, heads, size], or with heads in front of
// positions.
template <class View>
View ViewOf(decltype(View::data) data, bool by_heads, int64_t positions, int64_t heads,
            int64_t size) {
  const int64_t row = by_heads ? size : heads * size, head = by_heads ? positions * size : size;
  return {data, positions * heads * size, row, head};
}

}  // namespace

Attention::Attention(const AttentionDescription& description, size_t l2_bytes)
    : description_(description) {
  const AttentionArguments& sizes = description_.attention;
  const int element = description_.element;
  const size_t queries = size_t(sizes.batch) * sizes.queries * sizes.heads,
               keys = size_t(sizes.batch) * sizes.keys * sizes.key_heads;
  q_ = Describe(queries * sizes.size, element), k_ = Describe(keys * sizes.size, element);
  v_ = Describe(keys * sizes.value_size, element);
  y_ = Describe(queries * sizes.value_size, element);
  size_t bytes = 0;
  for (const Operand* operand : {&q_, &k_, &v_, &y_}) bytes += operand->stride;
  if (has_mask()) bytes += (mask_ = Describe(mask_elements(), mask_type())).stride;
  sets_ = SetsOf(bytes, l2_bytes);
  uint32_t seed = 0;
  for (Operand* operand : {&q_, &k_, &v_}) Fill(*operand, element, sets_, ++seed, 0.f, 1.f);
  Allocate(y_, sets_);
  if (has_mask()) fill_mask();
  reference_ = AnswerOf(y_.elements);
  ComputeAttention(attention(0), element, description_.layers.chains[0].accumulation,
                   description_.limits.mean, reference_);
}

Arguments Attention::arguments(int set, int, int) const {
  Arguments arguments;
  arguments.attention = attention(set);
  return arguments;
}

void Attention::poison(cudaStream_t stream) const {
  Check(cudaMemsetAsync(y_.at(0), 0xff, y_.stride, stream), "cudaMemsetAsync");
}

Distance Attention::error() const {
  const Limits& limits = description_.limits;
  return DistanceFrom(reference_, y_.at(0), description_.element, limits.output, limits.floor,
                      y_.elements);
}

size_t Attention::mask_elements() const {
  size_t count = 1;
  for (int size : description_.mask_shape) count *= size;
  return count;
}

int Attention::mask_type() const {
  const ScoreMask& mask = description_.attention.mask;
  if (mask.kind != Masking::kAdded) return kTypeBool;
  return mask.fp32 ? kTypeF32 : description_.element;
}

// Values that are added are random; a boolean mask excludes one key of sixteen.
void Attention::fill_mask() {
  if (mask_type() != kTypeBool) return Fill(mask_, mask_type(), sets_, 9, 0.f, 1.f);
  Allocate(mask_, sets_);
  const bool keeps = description_.attention.mask.kind == Masking::kKept;
  for (int set = 0; set < sets_; ++set)
    FillBooleans(static_cast<bool*>(mask_.at(set)), mask_.elements, keeps);
}

AttentionArguments Attention::attention(int set) const {
  AttentionArguments a = description_.attention;
  const bool* by_heads = description_.by_heads;
  a.q = ViewOf<HeadsView>(q_.at(set), by_heads[0], a.queries, a.heads, a.size);
  a.k = ViewOf<HeadsView>(k_.at(set), by_heads[1], a.keys, a.key_heads, a.size);
  a.v = ViewOf<HeadsView>(v_.at(set), by_heads[2], a.keys, a.key_heads, a.value_size);
  a.y = ViewOf<HeadsOutput>(y_.at(set), false, a.queries, a.heads, a.value_size);
  if (!has_mask()) return a;
  a.mask.data = mask_.at(set);
  int64_t stride = 1;
  int64_t* const strides[] = {&a.mask.batch, &a.mask.head, &a.mask.query, &a.mask.key};
  for (int axis = 3; axis >= 0; stride *= description_.mask_shape[axis--])
    *strides[axis] = description_.mask_shape[axis] == 1 ? 0 : stride;
  return a;
}

}  // namespace profiler
}  // namespace onnxbolt
