// The library's C functions: RegisterCustomOps for ONNX Runtime, the others for tools that look at
// the file.
#include <charconv>
#include <cstdio>
#include <deque>
#include <string>

#include "runtime/declarations.h"
#include "runtime/device.h"
#include "runtime/fused_op.h"
#include "runtime/manifest.h"
#include "runtime/ort_objects.h"

#define ONNXBOLT_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxbolt {
namespace {

// ORT's minor version; makes the function table ready, as far as CreateStatus where ORT is too old
// for more.
int Connect(const OrtApiBase* base) {
  static const int minor = [base] {
    int major = 0, number = 0;
    const int fields = std::sscanf(base->GetVersionString(), "%d.%d", &major, &number);
    const bool known = fields == 2 && major == 1 && number >= ort::kMinimumOrt;
    ort::api_table =
        reinterpret_cast<const void* const*>(base->GetApi(known ? ort::kMinimumOrt : 1));
    return known ? number : 0;
  }();
  return minor;
}

// The domain and its ops, made once: every session shares them, and ORT keeps their addresses.
OrtCustomOpDomain* Domain(int ort_minor) {
  static std::deque<FusedOp> ops;
  static OrtCustomOpDomain* const domain = [ort_minor] {
    OrtCustomOpDomain* made = nullptr;
    ort::Check(ort::CreateCustomOpDomain(kDomain, &made));
    for (size_t i = 0; i < kManifest.op_count; ++i) {
      ort::Check(ort::CustomOpDomainAdd(made, &ops.emplace_back(kManifest.ops[i], ort_minor)));
    }
    return made;
  }();
  return domain;
}

std::string SessionEntry(const OrtSessionOptions* options, const char* key, const char* otherwise) {
  int present = 0;
  ort::Check(ort::HasSessionConfigEntry(options, key, &present));
  if (!present) return otherwise;
  size_t size = 0;
  ort::Check(ort::GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  ort::Check(ort::GetSessionConfigEntry(options, key, value.data(), &size));
  return value.c_str();
}

// std::stoi would ask for glibc 2.38 where the build machine has it.
int DeviceOf(const std::string& entry) {
  int ordinal = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), ordinal);
  if (error != std::errc() || end != entry.data() + entry.size())
    throw ort::Error(ort::kInvalidArgument, "the session configuration entry " +
                                                std::string(kDeviceEntry) + " is '" + entry +
                                                "', which is no number");
  return ordinal;
}

// A registered op type wins over the function body of the same name, so without a GPU that runs it
// nothing may be registered.
void Register(OrtSessionOptions* options, int ort_minor) {
  if (SessionEntry(options, kEnableEntry, "1") == "0") return;
  const Selection selection = SelectArch(DeviceOf(SessionEntry(options, kDeviceEntry, "0")));
  if (!selection.arch) {
    std::fprintf(stderr, "onnxbolt: warning: the fused kernels are not used: %s\n",
                 selection.reason.c_str());
    return;
  }
  ort::Check(ort::AddCustomOpDomain(options, Domain(ort_minor)));
}

}  // namespace
}  // namespace onnxbolt

ONNXBOLT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace onnxbolt;
  const int ort_minor = Connect(base);
  if (!ort_minor) {
    const std::string text = std::string("onnxbolt: the library needs ONNX Runtime 1.") +
                             std::to_string(ort::kMinimumOrt) + " or a later 1.x, this is " +
                             base->GetVersionString();
    return ort::CreateStatus(ort::kNotImplemented, text.c_str());
  }
  return ort::AsStatus("registration", [&] { Register(options, ort_minor); });
}

// JSON: {"format", "digest", "archs", "ops"}.
ONNXBOLT_EXPORT const char* onnxbolt_manifest() { return onnxbolt::kManifest.json; }

// The architecture whose kernels CUDA device `device` would run, 80 say, or 0 with the reason in
// `reason` (cut to `size`).
ONNXBOLT_EXPORT int onnxbolt_probe(int device, char* reason, size_t size) {
  const onnxbolt::Selection selection = onnxbolt::SelectArch(device);
  std::snprintf(reason, size, "%s", selection.reason.c_str());
  return selection.arch;
}
