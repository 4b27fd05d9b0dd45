// Finds the compiled kernel for a node's configuration.
#pragma once
#include "runtime/kernel.h"
#include "runtime/manifest.h"

namespace onnxbolt {

// The kernel compiled for this op and configuration row, or null. Columns that a launch decides
// (the range of m, for instance) are not compared.
const Kernel* FindKernel(const Op& op, const int64_t* config);

// Bytes of shared memory that the most demanding kernel of an architecture needs.
int LargestSharedMemory(int arch);

}  // namespace onnxbolt
