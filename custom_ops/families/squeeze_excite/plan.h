// The division of squeeze-and-excitation: a cluster takes a few images, and each of its blocks a
// part of their channels.
#pragma once
#include <algorithm>

#include "ops/squeeze_excite/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {
namespace squeeze_excite {

constexpr int kMostBlocks = 8;  // blocks of a cluster, on every GPU that has clusters
constexpr int kMostImages = 2;  // images of a cluster: they share a load of weights
constexpr double kLeastUse =
    0.7;  // the least share of busy blocks, if channels do not divide evenly

// The division, and a block's shared memory: arrays of floats, and its part of x where there is
// room, which is then read once.
struct Plan {
  int blocks, images;  // blocks and images of a cluster
  int part;            // channels of a block, at most
  bool x_kept;
  int sums, vector, squeezed;  // floats: partial sums of all threads; channels of a block; squeezed
                               // channels of an image
  int bytes;
};

// The lengths that follow from blocks and images.
template <class Element>
void Measure(Plan& plan, const SqueezeExciteArguments& args, int width, int threads) {
  const int vectors = args.channels / width;
  plan.part = (vectors + plan.blocks - 1) / plan.blocks * width;
  plan.sums = threads * width;
  plan.vector = (plan.part + 3) / 4 * 4;
  plan.squeezed = args.squeezed;
  // means and gates, shares and squeezed channels of each image; both biases
  const int64_t floats = plan.sums + (2 * plan.images + 1) * (int64_t(plan.vector) + plan.squeezed);
  const int64_t kept = plan.x_kept ? int64_t(plan.images) * args.pixels * plan.part : 0;
  plan.bytes = static_cast<int>(
      std::min<int64_t>(sizeof(float) * floats + sizeof(Element) * kept, INT32_MAX));
}

// As many blocks in a cluster as have about equal parts; as many images as make one wave, if there
// are few. x stays in shared memory where that takes no more than `room`.
template <class Element>
Plan MakePlan(const SqueezeExciteArguments& args, int width, int threads, int room, int most_blocks,
              int sm_count) {
  const int vectors = args.channels / width;
  Plan plan{};
  for (plan.blocks = most_blocks; plan.blocks > 1; plan.blocks /= 2) {
    const int most = (vectors + plan.blocks - 1) / plan.blocks;
    if (vectors >= kLeastUse * most * plan.blocks) break;
  }
  const int64_t waves = (int64_t(args.n) * plan.blocks + sm_count - 1) / sm_count;
  plan.images = static_cast<int>(std::clamp<int64_t>(waves, 1, std::min(kMostImages, args.n)));
  plan.x_kept = true;
  Measure<Element>(plan, args, width, threads);
  if (plan.bytes > room) {
    plan.x_kept = false;
    Measure<Element>(plan, args, width, threads);
  }
  return plan;
}

}  // namespace squeeze_excite
}  // namespace onnxbolt
