// Looking up compiled kernels by what a node carries.
#pragma once
#include "runtime/kernel.h"
#include "runtime/manifest.h"

namespace onnxbolt {

// The kernel compiled for this op and configuration row, or null. What a launch decides (range of
// m, split_k, and the swizzle of 3.x kernels) is no part of the comparison.
const Kernel* FindKernel(const Op& op, const int64_t* config);

// Bytes that the most demanding kernel of an architecture asks for.
int LargestSharedMemory(int arch);

}  // namespace onnxbolt
