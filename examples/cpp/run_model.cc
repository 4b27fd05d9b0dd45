// Runs a model that onnxbolt optimized, by ONNX Runtime's C++ API: on a GPU with the library of
// fused kernels, or on the CPU without it. docs/deploy/cpp.md says how to build it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <onnxruntime_cxx_api.h>

namespace {

constexpr const char* kUsage = R"(usage: run_model MODEL.onnx cpu|cuda[:N] [option ..]
  --input NAME=1x3x224x224[:FILE]  sizes of an input, needed where the model leaves some open, and
                                   its elements as raw bytes (default: random numbers for floats,
                                   zeros for other types)
  --out DIR                        write each output as raw bytes to DIR/NAME.bin
  --runs N                         runs to measure after the first one (default: 20)
  --profile PREFIX                 let ONNX Runtime write a trace of all nodes to PREFIX_DATE.json
)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::string model, device;        // device: "cpu", or the number of a GPU
  std::vector<std::string> inputs;  // NAME=SHAPE[:FILE]
  std::string out, profile;
  int runs = 20;
};

struct Input {
  std::string name;
  ONNXTensorElementDataType type;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

std::string DeviceOf(const std::string& text) {
  if (text == "cpu") return text;
  if (text == "cuda") return "0";
  const std::string number = text.rfind("cuda:", 0) == 0 ? text.substr(5) : "";
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos)
    throw UsageError("'" + text + "' is no device: cpu, cuda or cuda:N");
  return number;
}

Arguments Parse(int argc, char** argv) {
  if (argc < 3) throw UsageError("MODEL.onnx and a device are needed");
  Arguments arguments;
  arguments.model = argv[1];
  arguments.device = DeviceOf(argv[2]);
  for (int i = 3; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw UsageError(option + " needs a value");
    const char* value = argv[i + 1];
    if (option == "--input") {
      arguments.inputs.push_back(value);
    } else if (option == "--out") {
      arguments.out = value;
    } else if (option == "--profile") {
      arguments.profile = value;
    } else if (option == "--runs") {
      arguments.runs = std::atoi(value);
      if (arguments.runs < 1) throw UsageError("--runs needs a number of at least 1");
    } else {
      throw UsageError("there is no option " + option);
    }
  }
  return arguments;
}

void AppendCuda(Ort::SessionOptions& options, const std::string& device) {
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* cuda = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&cuda));
  const std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(api.ReleaseCUDAProviderOptions)> owner(
      cuda, api.ReleaseCUDAProviderOptions);
  // DEFAULT for models whose sizes vary, EXHAUSTIVE for those of fixed sizes: docs/deploy.md
  const char* const keys[] = {"device_id", "cudnn_conv_algo_search"};
  const char* const values[] = {device.c_str(), "DEFAULT"};
  Ort::ThrowOnError(api.UpdateCUDAProviderOptions(cuda, keys, values, 2));
  options.AppendExecutionProvider_CUDA_V2(*cuda);
}

Ort::SessionOptions OptionsOf(const Arguments& arguments, const std::string& library) {
  Ort::SessionOptions options;
  // ONNX Runtime's reordering of channels for CPU kernels crashes on some fp16 models
  options.AddConfigEntry("optimization.disable_specified_optimizers", "NchwcTransformer");
  if (!arguments.profile.empty()) options.EnableProfiling(arguments.profile.c_str());
  if (arguments.device == "cpu") return options;
  options.AddConfigEntry("onnxbolt.device", arguments.device.c_str());
  // the library registers nothing and warns where no GPU can run its kernels, and functions run
  if (!library.empty()) options.RegisterCustomOpsLibrary(library.c_str());
  AppendCuda(options, arguments.device);
  return options;
}

// The library beside the model by its full path, since a bare name would be looked for among the
// system's libraries; empty if there is none.
std::string LibraryOf(const std::string& model) {
  const auto path = std::filesystem::absolute(model).replace_extension(".onnxbolt.so");
  return std::filesystem::exists(path) ? path.string() : "";
}

// Model and library carry the digest of the same sources. Where they differ, ONNX Runtime would
// run the function bodies of op types that the library lacks, silently.
void CheckDigest(const Ort::Session& session, const std::string& library) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto digest =
      session.GetModelMetadata().LookupCustomMetadataMapAllocated("onnxbolt.digest", allocator);
  if (!digest) return;  // no fused nodes
  if (library.empty()) {
    std::fprintf(stderr,
                 "warning: there is no library beside the model, so that fused nodes run as ONNX "
                 "functions, which is slower. Run: onnxbolt build MODEL.onnx\n");
    return;
  }
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  const auto manifest =
      handle ? reinterpret_cast<const char* (*)()>(dlsym(handle, "onnxbolt_manifest")) : nullptr;
  if (!manifest || std::string(manifest()).find(digest.get()) == std::string::npos)
    throw std::runtime_error(library + " is not the library of this model. Run: onnxbolt build");
}

// Bytes of an element, 0 for a type that this program does not read.
size_t SizeOf(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return 1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return 8;
    default:
      return 0;
  }
}

std::string TextOf(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

std::vector<int64_t> ShapeOf(const std::string& text) {
  std::vector<int64_t> shape;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('x', at), text.size());
    const std::string number = text.substr(at, end - at);
    if (number.empty() || number.size() > 9 ||
        number.find_first_not_of("0123456789") != std::string::npos)
      throw UsageError("'" + text + "' is no shape: write 1x3x224x224");
    shape.push_back(std::stoll(number));
    at = end + 1;
  }
  return shape;
}

std::vector<char> ReadFile(const std::string& path, size_t size) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || bytes.size() != size)
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes where " +
                             std::to_string(size) + " are needed");
  return bytes;
}

// Seeded numbers from -1 to 1 for floats: zeros would draw less power, and so run faster than data.
std::vector<char> Made(ONNXTensorElementDataType type, size_t size) {
  std::vector<char> bytes(size);
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return bytes;
  std::mt19937 random(0);
  std::uniform_real_distribution<float> numbers(-1, 1);
  auto* const floats = reinterpret_cast<float*>(bytes.data());
  std::generate(floats, floats + size / sizeof(float), [&] { return numbers(random); });
  return bytes;
}

// Input `index` of the model, with the shape and the file that `given`, "SHAPE[:FILE]", names.
Input InputOf(const Ort::Session& session, size_t index, const std::string& name,
              const std::string& given) {
  const Ort::TypeInfo info = session.GetInputTypeInfo(index);
  if (info.GetONNXType() != ONNX_TYPE_TENSOR)
    throw std::runtime_error("input " + name + " is not a tensor");
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  Input input{name, tensor.GetElementType(), tensor.GetShape(), {}};
  const size_t colon = given.find(':');
  if (!given.empty()) input.shape = ShapeOf(given.substr(0, colon));
  size_t size = SizeOf(input.type);
  if (!size) throw std::runtime_error("input " + name + " has a type that this program lacks");
  for (const int64_t extent : input.shape) {
    if (extent < 0)
      throw UsageError("input " + name + " has open sizes (" + TextOf(input.shape) +
                       "): give them by --input " + name + "=1x3x224x224");
    size *= extent;
  }
  input.bytes =
      colon == std::string::npos ? Made(input.type, size) : ReadFile(given.substr(colon + 1), size);
  return input;
}

std::vector<Input> InputsOf(const Ort::Session& session, std::vector<std::string> given) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Input> inputs;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string name = session.GetInputNameAllocated(i, allocator).get();
    const auto found = std::find_if(given.begin(), given.end(), [&](const std::string& text) {
      return text.rfind(name + "=", 0) == 0;
    });
    inputs.push_back(
        InputOf(session, i, name, found == given.end() ? "" : found->substr(name.size() + 1)));
    if (found != given.end()) given.erase(found);
  }
  if (!given.empty()) throw UsageError("the model has no input of --input " + given.front());
  return inputs;
}

void Write(const Ort::Value& value, const std::string& name, const std::string& directory) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  const size_t size = info.GetElementCount() * SizeOf(info.GetElementType());
  std::printf("output %s: %s\n", name.c_str(), TextOf(info.GetShape()).c_str());
  if (directory.empty()) return;
  const std::string path = directory + "/" + name + ".bin";
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(value.GetTensorRawData()), size);
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

void Run(const Arguments& arguments) {
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "run_model");
  const std::string library = LibraryOf(arguments.model);
  Ort::Session session(env, arguments.model.c_str(), OptionsOf(arguments, library));
  if (arguments.device != "cpu") CheckDigest(session, library);

  std::vector<Input> inputs = InputsOf(session, arguments.inputs);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<const char*> input_names, output_names;
  std::vector<Ort::Value> values;
  for (Input& input : inputs) {
    input_names.push_back(input.name.c_str());
    values.push_back(Ort::Value::CreateTensor(memory, input.bytes.data(), input.bytes.size(),
                                              input.shape.data(), input.shape.size(), input.type));
  }
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Ort::AllocatedStringPtr> names;
  for (size_t i = 0; i < session.GetOutputCount(); ++i)
    output_names.push_back(names.emplace_back(session.GetOutputNameAllocated(i, allocator)).get());

  std::vector<Ort::Value> outputs;
  std::vector<double> milliseconds;
  for (int run = 0; run <= arguments.runs; ++run) {  // the first one is not measured
    const auto start = std::chrono::steady_clock::now();
    outputs = session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(),
                          values.size(), output_names.data(), output_names.size());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (run) milliseconds.push_back(took.count());
  }
  for (size_t i = 0; i < outputs.size(); ++i) Write(outputs[i], output_names[i], arguments.out);
  std::nth_element(milliseconds.begin(), milliseconds.begin() + arguments.runs / 2,
                   milliseconds.end());
  std::printf("median of %d runs with copies from and to the host: %.3f ms\n", arguments.runs,
              milliseconds[arguments.runs / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(Parse(argc, argv));
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {  // ONNX Runtime's errors are among them
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
