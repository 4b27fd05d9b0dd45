// A custom-op library of somebody else: tests::Twice(float x) = x + x, for the CPU.
#include <vector>

#include "runtime/ort_abi.h"

namespace ort = onnxbolt::ort;

namespace {

void Compute(void*, OrtKernelContext* context) {
  const OrtValue* x = nullptr;
  ort::GetInput(context, 0, &x);
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ort::GetTensorTypeAndShape(x, &info);
  size_t rank = 0;
  ort::GetDimensionsCount(info, &rank);
  std::vector<int64_t> dims(rank);
  ort::GetDimensions(info, dims.data(), rank);
  ort::ReleaseTensorTypeAndShape(info);
  OrtValue* y = nullptr;
  ort::GetOutput(context, 0, dims.data(), rank, &y);
  void *from = nullptr, *to = nullptr;
  ort::GetTensorData(const_cast<OrtValue*>(x), &from);
  ort::GetTensorData(y, &to);
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  for (int64_t i = 0; i < count; ++i)
    static_cast<float*>(to)[i] = 2 * static_cast<const float*>(from)[i];
}

OrtCustomOp Twice() {
  OrtCustomOp op{};
  op.version = 12;
  op.CreateKernel = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*) -> void* {
    return new char;
  };
  op.GetName = [](const OrtCustomOp*) { return "Twice"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputType = op.GetOutputType = [](const OrtCustomOp*, size_t) { return 1; };  // float
  op.GetInputTypeCount = op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.KernelCompute = Compute;
  op.KernelDestroy = [](void* kernel) { delete static_cast<char*>(kernel); };
  op.GetInputCharacteristic =
      op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return 0; };
  return op;
}

}  // namespace

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  ort::api_table = reinterpret_cast<const void* const*>(base->GetApi(ort::kMinimumOrt));
  static const OrtCustomOp op = Twice();
  static OrtCustomOpDomain* const domain = [] {
    OrtCustomOpDomain* made = nullptr;
    ort::CreateCustomOpDomain("tests", &made);
    ort::CustomOpDomainAdd(made, &op);
    return made;
  }();
  return ort::AddCustomOpDomain(options, domain);
}
