// From one layer to the next without shared memory: accumulators go through their layer's epilogue
// and become, in place, the operand of the next product. All 128 threads of a warpgroup call every
// function.
#pragma once
#include "epilogue/chain.h"
#include "sm90/tensor_map.h"
#include "sm90/wgmma_registers.h"

namespace onnxbolt {
namespace sm90 {

// A thread's fragment of 64 rows x Columns as an operand: four registers for each 16 columns.
template <int Columns>
using Operand = uint32_t[Columns / 4];

// Applies a layer's epilogue to 16 columns: four values in each half (see Accumulators). `vectors`:
// the layer's, [kVectors][Columns]; `operands`: the tensors' values, if the epilogue has any.
template <class Chain, class Result, int Columns>
CUTLASS_DEVICE cutlass::Array<Result, 8> FinishColumns(
    const Accumulators<Columns>& sums, int block, const float* vectors, const float* params,
    typename Chain::template Operands<8> operands = {}) {
  cutlass::Array<float, 8> x;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = sums[8 * block + i];
#pragma unroll
  for (int v = 0; v < Chain::kVectors; ++v) {
    const float* vector = vectors + v * Columns + 16 * block + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(vector + 2 * i);
      operands.vectors[v][i] = operands.vectors[v][i + 2] = pair.x;
      operands.vectors[v][i + 1] = operands.vectors[v][i + 3] = pair.y;
    }
  }
  return Chain::template finish<Result>(x, operands, params);
}

// An inner layer's result, rounded to the element type.
template <class Chain, class Element, int Columns>
CUTLASS_DEVICE void FinishAsOperand(const Accumulators<Columns>& sums, const float* vectors,
                                    const float* params, Operand<Columns>& operand) {
#pragma unroll
  for (int block = 0; block < Columns / 16; ++block) {
    const auto finished = FinishColumns<Chain, Element, Columns>(sums, block, vectors, params);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      operand[4 * block + i] = reinterpret_cast<const uint32_t*>(&finished)[i];
  }
}

// Keeps the compiler from moving an operand, since products under way read it.
template <int Size>
CUTLASS_DEVICE void PinOperand(uint32_t (&operand)[Size]) {
#pragma unroll
  for (uint32_t& word : operand) asm volatile("" : "+r"(word)::"memory");
}

// Begins sums = operand weights^T. `weights` are rows of Depth elements, in boxes whose rows are
// one swizzled row; box(i) is where one begins.
template <class Element, int Depth, int Columns, class Boxes>
CUTLASS_DEVICE void BeginOperandProducts(Operand<Depth>& operand, const Boxes& box,
                                         Accumulators<Columns>& sums) {
  constexpr int kBox = BoxColumns<Element>(Depth), kSteps = kBox / 16;
  PinAccumulators(sums);
  BeginProducts();
#pragma unroll
  for (int i = 0; i < Depth / kBox; ++i) {
    const uint64_t weights = OperandDescriptor(box(i), kBox * sizeof(Element));
#pragma unroll
    for (int k = 0; k < kSteps; ++k)  // descriptors count addresses in units of 16 bytes
      WgmmaFromRegisters<Columns>::template multiply<Element>(sums, operand + 4 * (i * kSteps + k),
                                                              weights + 2 * k, i + k > 0);
  }
  CommitProducts();
}

// The same, and waits for the result; boxes are `box_bytes` apart.
template <class Element, int Depth, int Columns>
CUTLASS_DEVICE void MultiplyOperand(Operand<Depth>& operand, const char* weights, int box_bytes,
                                    Accumulators<Columns>& sums) {
  PinOperand(operand);
  BeginOperandProducts<Element, Depth, Columns>(
      operand, [&](int i) { return weights + i * box_bytes; }, sums);
  WaitForProducts<0>();
  PinAccumulators(sums);
}

}  // namespace sm90
}  // namespace onnxbolt
