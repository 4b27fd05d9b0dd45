// The division of a normalization of groups among thread blocks: some blocks share an image's part
// of channels, each has some of its pixels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "ops/group_norm/arguments.h"
#include "runtime/instance.h"

namespace onnxbolt {
namespace group_norm {

// The division, and places in a block's shared memory. Sizes are those of the largest block: the
// last part of an image may have fewer channels, the last block of a part fewer pixels or none.
struct Plan {
  int part, parts;     // channels of a part: whole groups and whole accesses; parts of an image
  int blocks, pixels;  // blocks of a part, and the pixels that each has
  int group;           // channels of a group
  bool kept;           // a block's part of x stays in shared memory
  int exchange;        // floats between two arrays that threads hand each other
  int channels, own, groups;  // floats in front of: moments of channels, of groups, and of groups
                              // over all blocks
  int x;                      // bytes in front of x
  int bytes;
};

// `config_part` and `config_blocks` are what the configuration asks for. x is kept where `keeps`
// and where a block's shared memory of `room` bytes holds it.
template <class Element>
Plan MakePlan(const GroupNormArguments& args, int width, int threads, int64_t config_part,
              int64_t config_blocks, bool keeps, int room) {
  Plan plan{};
  plan.group = args.channels / args.groups;
  const int64_t least = std::lcm<int64_t>(plan.group, width);
  plan.part =
      static_cast<int>(std::min<int64_t>((config_part + least - 1) / least * least, args.channels));
  plan.parts = (args.channels + plan.part - 1) / plan.part;
  plan.blocks = static_cast<int>(std::clamp<int64_t>(config_blocks, 1, args.pixels));
  plan.pixels = (args.pixels + plan.blocks - 1) / plan.blocks;
  plan.exchange = threads / 2;
  plan.channels = (2 * width + 1) * plan.exchange;
  plan.own = plan.channels + 2 * plan.part;
  plan.groups = plan.own + 2 * (plan.part / plan.group);
  const int floats = plan.groups + 2 * (plan.part / plan.group);
  plan.x = (floats * int(sizeof(float)) + 15) / 16 * 16;
  const int64_t all = plan.x + int64_t(plan.pixels) * plan.part * int64_t(sizeof(Element));
  plan.kept = keeps && all <= room;
  plan.bytes = plan.kept ? static_cast<int>(all) : plan.x;
  return plan;
}

inline int64_t BlocksOf(const GroupNormArguments& args, const Plan& plan) {
  return int64_t(args.n) * plan.parts * plan.blocks;
}

// Bytes that the first of two kernels hands the second: a mean and a sum of squares of each image,
// group and block.
inline size_t HandedBytes(const GroupNormArguments& args, const Plan& plan) {
  return size_t(args.n) * args.groups * plan.blocks * 2 * sizeof(float);
}

}  // namespace group_norm
}  // namespace onnxbolt
