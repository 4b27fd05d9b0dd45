// How squeeze-and-excitation is divided: a cluster takes a few images, and each of its blocks a part of their channels.
#pragma once
#include <algorithm>

#include "instance.h"

namespace onnxbolt {
namespace squeeze_excite {

constexpr int kMostBlocks = 8;  // of a cluster, on every GPU that has clusters
constexpr int kMostImages = 2;  // of a cluster at a time: they share a load of weights
constexpr double kLeastUse = 0.7;  // of the blocks, where channels do not divide evenly

// Shared memory of a block. The floats are `sums` of threads, means, both forms of the squeezed channels and gates; the rest is optional.
struct Plan {
  int blocks, images;       // of a cluster
  int part;                 // channels of a block, at most
  bool weights_staged, x_kept;
  int sums, means, squeezed;  // lengths of the arrays of floats; there are two of means' and two of squeezed's length
  int squeeze_pitch, excite_pitch;  // elements from one staged row of weights to the next
  int bytes;
};

// A row's elements in shared memory: an odd number of 16-byte units, so that rows that are read together meet different banks.
template <class Element>
int PaddedPitch(int elements) {
  constexpr int kUnit = 16 / sizeof(Element);
  return ((elements + kUnit - 1) / kUnit | 1) * kUnit;
}

// The bytes of `plan`, of which the parts so far chosen are set.
template <class Element>
int SharedBytes(const Plan& plan, const SqueezeExciteArguments& args) {
  int64_t bytes = sizeof(float) * (int64_t(plan.sums) + 2 * plan.means + 2 * plan.squeezed);
  const int64_t weights = int64_t(args.squeezed) * plan.squeeze_pitch + int64_t(plan.part) * plan.excite_pitch;
  if (plan.weights_staged) bytes += sizeof(Element) * weights;
  if (plan.x_kept) bytes += sizeof(Element) * int64_t(plan.images) * args.pixels * plan.part;
  return static_cast<int>(std::min<int64_t>(bytes, INT32_MAX));
}

// The lengths that follow from blocks and images.
template <class Element>
void Measure(Plan& plan, const SqueezeExciteArguments& args, int width, int threads) {
  const int vectors = args.channels / width;
  plan.part = (vectors + plan.blocks - 1) / plan.blocks * width;
  plan.sums = threads * width;
  plan.means = plan.images * ((plan.part + 3) / 4 * 4);
  plan.squeezed = plan.images * args.squeezed;
  plan.squeeze_pitch = PaddedPitch<Element>(plan.part);
  plan.excite_pitch = PaddedPitch<Element>(args.squeezed);
  plan.bytes = SharedBytes<Element>(plan, args);
}

// As many blocks in a cluster as have about equal parts; as many images as make one wave, if there are few. Weights and x stay in shared
// memory where there is room.
template <class Element>
Plan MakePlan(const SqueezeExciteArguments& args, int width, int threads, int capacity, int most_blocks, int sm_count) {
  const int vectors = args.channels / width;
  Plan plan{};
  for (plan.blocks = most_blocks; plan.blocks > 1; plan.blocks /= 2) {
    const int most = (vectors + plan.blocks - 1) / plan.blocks;
    if (vectors >= kLeastUse * most * plan.blocks) break;
  }
  const int wave = static_cast<int>((int64_t(args.n) * plan.blocks + sm_count - 1) / sm_count);
  for (plan.images = std::clamp(wave, 1, std::min(kMostImages, args.n));; --plan.images) {
    plan.weights_staged = plan.x_kept = true;
    Measure<Element>(plan, args, width, threads);
    if (plan.bytes <= capacity || plan.images == 1) break;
  }
  plan.x_kept = plan.bytes <= capacity;
  Measure<Element>(plan, args, width, threads);
  plan.weights_staged = plan.bytes <= capacity;
  Measure<Element>(plan, args, width, threads);
  return plan;
}

}  // namespace squeeze_excite
}  // namespace onnxbolt
