#include "runtime/fused_op.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "runtime/elements.h"
#include "runtime/fused_kernel.h"
#include "runtime/ort_objects.h"
#include "runtime/shape_inference.h"

#ifndef ONNXBOLT_PROVIDER  // the tests run the library on ORT's CPU provider
#define ONNXBOLT_PROVIDER "CUDAExecutionProvider"
#endif

namespace onnxbolt {
namespace {

constexpr size_t kMostInputs = 32;

const Op& Of(const OrtCustomOp* self) { return static_cast<const FusedOp*>(self)->op; }

const char* Name(const OrtCustomOp* self) { return Of(self).name; }
const char* Provider(const OrtCustomOp*) { return ONNXBOLT_PROVIDER; }

size_t InputCount(const OrtCustomOp* self) {
  return Of(self).first_operand + std::strlen(Of(self).operands);
}
size_t OutputCount(const OrtCustomOp* self) { return Of(self).stores ? 2 : 1; }

int InputType(const OrtCustomOp* self, size_t index) {
  const Op& op = Of(self);
  const size_t first = op.first_operand;
  if (index == 0) return TypeOfX(op);
  if (index < first) return WeightOf(op.element);
  if (index == WrittenInto(op)) return op.output;
  const char letter = op.operands[index - first];
  if (letter == 'b') return kTypeBool;
  if (letter == 'o') return kTypeI32;
  if (letter == 'n') return op.indices;
  if (letter == 's') return kTypeI64;
  if (letter == 'u') return op.values;
  return letter == 'v' || letter == 'f' ? kTypeF32 : op.element;
}
int OutputType(const OrtCustomOp* self, size_t index) {
  return index == 0 ? Of(self).output : TypeOfStored(Of(self));
}

int Required(const OrtCustomOp*, size_t) { return ort::kRequired; }
// Sizes are wanted before a kernel is launched.
int InputMemory(const OrtCustomOp* self, size_t index) {
  const Op& op = Of(self);
  const bool own = index >= op.first_operand && index < InputCount(self);
  return own && op.operands[index - op.first_operand] == 's' ? ort::kHostMemory
                                                             : ort::kDeviceMemory;
}
int One(const OrtCustomOp*) { return 1; }
int Forever(const OrtCustomOp*) { return INT_MAX; }

// ORT asks this without saying for which op: a function for each place that the input may have.
template <int Input>
size_t Alias(int** inputs, int** outputs) {
  static int input = Input, output = 0;
  *inputs = &input, *outputs = &output;
  return 1;
}

template <size_t... Inputs>
auto AliasOf(size_t input, std::index_sequence<Inputs...>) {
  constexpr decltype(&Alias<0>) kFunctions[] = {Alias<Inputs>...};
  return kFunctions[input];
}

void ReleaseAlias(int*, int*) {}

OrtStatus* Create(const OrtCustomOp* self, const OrtApi*, const OrtKernelInfo* info,
                  void** kernel) {
  const std::string where = DescribeNode(Of(self), info);
  return ort::AsStatus(where, [&] { *kernel = new FusedKernel(Of(self), where, info); });
}

OrtStatus* Compute(void* kernel, OrtKernelContext* context) {
  const auto& fused = *static_cast<const FusedKernel*>(kernel);
  return ort::AsStatus(fused.where(), [&] { fused.Compute(context); });
}

void Destroy(void* kernel) { delete static_cast<FusedKernel*>(kernel); }

OrtStatus* Infer(const OrtCustomOp* self, OrtShapeInferContext* context) {
  return ort::AsStatus(Of(self).name, [&] { InferShape(Of(self), context); });
}

}  // namespace

FusedOp::FusedOp(const Op& description, int ort_minor) : OrtCustomOp{}, op(description) {
  version = static_cast<uint32_t>(std::min(ort_minor, ort::kCustomOpFields));
  GetName = Name;
  GetExecutionProviderType = Provider;
  GetInputType = InputType;
  GetInputTypeCount = InputCount;
  GetOutputType = OutputType;
  GetOutputTypeCount = OutputCount;
  GetInputCharacteristic = Required;
  GetOutputCharacteristic = Required;
  GetInputMemoryType = InputMemory;
  GetVariadicInputMinArity = GetVariadicInputHomogeneity = One;
  GetVariadicOutputMinArity = GetVariadicOutputHomogeneity = One;
  CreateKernelV2 = Create;
  KernelComputeV2 = Compute;
  KernelDestroy = Destroy;
  InferOutputShapeFn = Infer;
  GetStartVersion = One;
  GetEndVersion = Forever;
  if (const size_t input = WrittenInto(op); input != kNowhere) {
    // not GetMayInplace: others may still read the input, of which no channel that has been written
    // is written again
    GetAliasMap = AliasOf(input, std::make_index_sequence<kMostInputs>());
    ReleaseAliasMap = ReleaseAlias;
  }
}

}  // namespace onnxbolt
