// C functions that measure kernels, for ctypes. Kernels come from libraries of candidates
// (kernels.cc), whose pointers, streams and launches work here since all libraries of a process
// share the device's primary context.
//
// Functions return nullptr, or a text that says what failed. profiler_lost tells whether the device
// can still be used then.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/conv/arguments.h"
#include "profiler/nvml.h"
#include "profiler/problem.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace onnxbolt;
using namespace onnxbolt::profiler;

namespace {

constexpr float kLeastMilliseconds = 0.2f;  // milliseconds of one sample: events resolve half a
                                            // microsecond, and a graph starts in a few
constexpr int kMaxNodes = 2048;
constexpr float kEpsilon = 1e-5f;  // normalizations have it

// Kinds of problems (Computed in onnxbolt/problems/base.py).
enum class Computed {
  kConvolutions,
  kGemms,
  kNorm,
  kAttention,
  kConvTranspose,
  kQuantizedGemms,
  kQuantizedConvolutions,
  kBatchedGemms
};

struct DeviceFacts {
  char name[256];
  int sm, sm_count;
  int power_limit;  // watts, 0 where NVML does not tell
  int clock_mhz;    // clock of the SMs now, 0 if NVML does not tell
};

struct Named {
  std::string name;
  std::unique_ptr<Problem> problem;
};

std::list<Named> problems;  // the current one first
const Problem* problem = nullptr;
std::string last_failure;

// Calls `function`, and turns what it throws into a text that stays until the next call.
template <class Function>
const char* Guarded(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    last_failure = error.what();
    return last_failure.c_str();
  }
}

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  Check(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
  return value;
}

class Stream {
 public:
  Stream() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }
  void wait(const char* what) const { Check(cudaStreamSynchronize(stream_), what); }

 private:
  cudaStream_t stream_;
};

class Stopwatch {
 public:
  Stopwatch() {
    Check(cudaEventCreate(&start_), "cudaEventCreate");
    Check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  void start(cudaStream_t stream) { Check(cudaEventRecord(start_, stream), "cudaEventRecord"); }
  void stop(cudaStream_t stream) { Check(cudaEventRecord(end_, stream), "cudaEventRecord"); }
  float milliseconds() const {
    float value = 0;
    Check(cudaEventElapsedTime(&value, start_, end_), "cudaEventElapsedTime");
    return value;
  }

 private:
  cudaEvent_t start_, end_;
};

// A kernel as a caller names it: the layers of the current problem that it computes, and its row of
// numbers.
struct Launched {
  const Kernel* kernel;
  const int64_t* config;
  int layers;
};

// Kernels with what their launches need, each for the layers behind those of the one before.
class Candidate {
 public:
  Candidate(const Launched* launched, int count)
      : sm_count_(Attribute(cudaDevAttrMultiProcessorCount)) {
    for (int i = 0, first = 0; i < count; first += launched[i++].layers) Add(launched[i], first);
    if (parts_.back().last != problem->last())
      throw Failure("the kernels are for other layers than the problem's");
  }

  void Launch(int set, cudaStream_t stream) const {
    for (const Part& part : parts_) {
      const Arguments arguments = problem->arguments(set, part.first, part.last);
      Require(part.kernel->run(
          &arguments, onnxbolt::Launch{part.workspace.get(), part.config, stream, sm_count_}));
    }
  }

  // Every set of operands, once.
  void LaunchAll(cudaStream_t stream) const {
    for (int set = 0; set < problem->sets(); ++set) Launch(set, stream);
  }

 private:
  struct Part {
    const Kernel* kernel;
    int64_t config[kConfigWidth];
    int first, last;
    Buffer workspace;
  };

  static void Require(const char* error) {
    if (error) throw Failure(error);
  }

  void Add(const Launched& launched, int first) {
    Part part{launched.kernel, {}, first, first + launched.layers - 1, {}};
    if (launched.layers < 1 || launched.layers > kMaxLayers || part.last > problem->last())
      throw Failure("the kernels are for other layers than the problem's");
    std::copy_n(launched.config, kConfigWidth, part.config);
    Require(part.kernel->prepare());
    const Arguments arguments = problem->arguments(0, first, part.last);
    Require(part.kernel->can_implement(&arguments));
    part.workspace = Buffer(part.kernel->workspace_size(&arguments, part.config));
    parts_.push_back(std::move(part));
  }

  std::vector<Part> parts_;
  int sm_count_;
};

// Turns every programmatic dependency of a captured graph, by which a kernel starts while the one
// before it ends, into a full one.
void Serialize(cudaGraph_t graph) {
#if CUDART_VERSION >= 13000
  size_t count = 0;
  Check(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), "cudaGraphGetEdges");
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  Check(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count),
        "cudaGraphGetEdges");
  for (size_t i = 0; i < count; ++i) {
    if (edges[i].type != cudaGraphDependencyTypeProgrammatic) continue;
    Check(cudaGraphRemoveDependencies(graph, &from[i], &to[i], &edges[i], 1),
          "cudaGraphRemoveDependencies");
    Check(cudaGraphAddDependencies(graph, &from[i], &to[i], nullptr, 1),
          "cudaGraphAddDependencies");
  }
#else
  throw Failure("launches that do not overlap can be timed with CUDA 13 and later");
#endif
}

// Launches recorded once: short kernels would otherwise be timed by how fast the host launches
// them.
class Graph {
 public:
  Graph(const Candidate& candidate, int passes, bool overlap, const Stream& stream) {
    cudaGraph_t graph = nullptr;
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    const char* error = Guarded([&]() -> const char* {
      for (int pass = 0; pass < passes; ++pass) candidate.LaunchAll(stream);
      return nullptr;
    });
    const cudaError_t captured = cudaStreamEndCapture(stream, &graph);
    if (error) throw Failure(last_failure);
    Check(captured, "cudaStreamEndCapture");
    if (!overlap) Serialize(graph);
    const cudaError_t instantiated = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    Check(instantiated, "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  void Launch(cudaStream_t stream) const {
    Check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// The number of passes over all sets that make a sample long enough. Finding it also warms up.
int ChoosePasses(const Candidate& candidate, const Stream& stream) {
  Stopwatch watch;
  candidate.LaunchAll(stream);
  watch.start(stream);
  candidate.LaunchAll(stream);
  watch.stop(stream);
  stream.wait("the kernel's launch");
  const int needed =
      static_cast<int>(kLeastMilliseconds / std::max(watch.milliseconds(), 1e-3f)) + 1;
  return std::clamp(needed, 1, std::max(1, kMaxNodes / problem->sets()));
}

void Time(const Candidate& candidate, int samples, bool overlap, double* microseconds) {
  const Stream stream;
  const int passes = ChoosePasses(candidate, stream);
  const Graph graph(candidate, passes, overlap, stream);
  Stopwatch watch;
  for (int i = 0; i < samples; ++i) {
    graph.Launch(stream);  // hides the host's time for the launch that is timed
    watch.start(stream);
    graph.Launch(stream);
    watch.stop(stream);
    stream.wait("the kernel's launch");
    microseconds[i] = watch.milliseconds() * 1e3 / (double(passes) * problem->sets());
  }
}

Distance CheckAnswer(const Candidate& candidate) {
  const Stream stream;
  problem->poison(stream);
  candidate.Launch(0, stream);
  stream.wait("the kernel's launch");
  return problem->error();
}

// Problems are kept while three quarters of the memory are free: their candidates do not all come
// at once.
void MakeRoom() {
  size_t free = 0, total = 0;
  for (;;) {
    Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (problems.empty() || free >= total / 4 * 3) return;
    problems.pop_back();
  }
}

// `make` takes the size of the L2 cache.
template <class Make>
void SetProblem(const std::string& name, const Make& make) {
  problem = nullptr;
  const auto known = std::find_if(problems.begin(), problems.end(),
                                  [&](const Named& named) { return named.name == name; });
  if (known != problems.end()) {
    problems.splice(problems.begin(), problems, known);
  } else {
    MakeRoom();
    problems.push_front({name, make(Attribute(cudaDevAttrL2CacheSize))});
  }
  problem = problems.front().problem.get();
}

// `from`: the fields of Limits, then of each layer accumulation, relative and absolute, and the
// error of each of its steps.
Limits ReadLimits(const float* from, Layers& layers) {
  Limits all;
  for (float* to : {&all.rounding, &all.floor, &all.mean, &all.output, &all.element}) *to = *from++;
  for (Chain* chain = layers.chains; chain < layers.chains + layers.count; ++chain) {
    for (float* to : {&chain->accumulation, &chain->relative, &chain->absolute}) *to = *from++;
    for (Step* step = chain->steps; step < chain->steps + chain->size; ++step)
      step->error = *from++;
  }
  return all;
}

constexpr int kConvolutionExtents = 21,
              kGemmExtents = 3;  // numbers that describe a convolution, or a GEMM

// `extents`, of the first layer: m, n, k of a GEMM, and behind them the rotated columns, and the
// rows and columns of their table; of a convolution the int fields of ConvArguments, in their
// order; x_nchw is fp32 or 0, y_nchw and padding those of the only layer. `columns`: of the layers
// behind it.
Description Describe(bool is_gemm, int element, int output, const char* epilogue,
                     const int* extents, const int* columns, const float* params,
                     const float* limits) {
  Description description{is_gemm, element, output, ParseLayers(epilogue), {}, {}, {}, {}, {}};
  ConvArguments& conv = description.conv;
  const int image[kConvolutionExtents] = {1,          extents[0], 1, extents[2], extents[1], 1, 1,
                                          extents[0], 1,          0, 0,          0,          0, 1,
                                          1,          1,          1, 1,          0,          0, 0};
  const int* from = is_gemm ? image : extents;
  for (int* to :
       {&conv.n,          &conv.h,          &conv.w,         &conv.c,        &conv.k,
        &conv.r,          &conv.s,          &conv.p,         &conv.q,        &conv.pad_top,
        &conv.pad_left,   &conv.pad_bottom, &conv.pad_right, &conv.stride_h, &conv.stride_w,
        &conv.dilation_h, &conv.dilation_w, &conv.groups,    &conv.x_nchw,   &conv.y_nchw,
        &conv.padding})
    *to = *from++;
  conv.x_pitch = conv.c, conv.y_pitch = conv.k;
  description.columns[0] = conv.k;
  std::copy_n(columns, description.last(), description.columns + 1);
  std::copy_n(params, kMaxParams, description.params);
  if (description.layers.chains[0].rotated)
    description.rotation = {nullptr, extents[4], extents[5], extents[3], 0};
  description.limits = ReadLimits(limits, description.layers);
  return description;
}

// `extents`: the batches, and m, n, k of each. Rows of all batches are one product's for the
// reference.
Description DescribeBatches(int element, int output, const char* epilogue, const int* extents,
                            const int* columns, const float* params, const float* limits) {
  const int whole[] = {extents[0] * extents[1], extents[2], extents[3]};
  Description description =
      Describe(true, element, output, epilogue, whole, columns, params, limits);
  description.batches = extents[0];
  return description;
}

// `extents`: those of the convolution that makes all phases, and behind them the fields of
// PhasedPixels.
Description DescribePhases(Description description, const int* extents) {
  PhasedPixels& pixels = description.conv.pixels;
  const int* from = extents + kConvolutionExtents;
  for (int* to : {&pixels.h, &pixels.w, &pixels.top, &pixels.left, &pixels.height, &pixels.width,
                  &pixels.zeros_h, &pixels.zeros_w, &pixels.d})
    *to = *from++;
  description.conv.y_pitch = description.conv.k / pixels.count();
  return description;
}

// `extents`: behind those of the product, the zero point of x.
Description DescribeCodes(Description description, const int* extents) {
  description.layers.chains[0].zero =
      static_cast<float>(extents[description.is_gemm ? kGemmExtents : kConvolutionExtents]);
  return description;
}

// `extents`: rows, columns, and 1 if the mean is subtracted.
NormDescription DescribeNorm(int element, const char* epilogue, const int* extents,
                             const float* limits) {
  NormDescription description{element, ParseLayers(epilogue), {}, {}};
  description.norm.rows = extents[0], description.norm.columns = extents[1];
  description.norm.centered = extents[2] != 0, description.norm.epsilon = kEpsilon;
  description.limits = ReadLimits(limits, description.layers);
  return description;
}

// `extents`: batch, heads, heads of keys, queries, keys, sizes of queries and of values; 1 for each
// of q, k and v that lies by heads; the number of the kind of mask, 1 for one of fp32, its four
// sizes; first, last and shift of the band.
AttentionDescription DescribeAttention(int element, const int* extents, const float* limits) {
  AttentionDescription description{element, ParseLayers(""), {}, {}, {}, {}};
  AttentionArguments& a = description.attention;
  for (int* to : {&a.batch, &a.heads, &a.key_heads, &a.queries, &a.keys, &a.size, &a.value_size})
    *to = *extents++;
  for (bool& by_heads : description.by_heads) by_heads = *extents++ != 0;
  a.mask.kind = static_cast<Masking>(*extents++);
  a.mask.fp32 = *extents++ != 0;
  for (int& size : description.mask_shape) size = *extents++;
  for (int* to : {&a.first, &a.last, &a.shift}) *to = *extents++;
  a.scale = 1.f / std::sqrt(static_cast<float>(a.size));
  a.masked = Masked::kZero;
  description.limits = ReadLimits(limits, description.layers);
  return description;
}

}  // namespace

EXPORT const char* profiler_device(DeviceFacts* facts) {
  return Guarded([&]() -> const char* {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    *facts = {};
    std::strncpy(facts->name, properties.name, sizeof facts->name - 1);
    facts->sm = properties.major * 10 + properties.minor;
    facts->sm_count = properties.multiProcessorCount;
    facts->power_limit = Nvml::get().power_limit();
    facts->clock_mhz = Nvml::get().clock_mhz();
    return nullptr;
  });
}

// Sets the problem that the calls below are about; makes its operands and the reference's answer
// unless it has them. `name` tells problems apart.
EXPORT const char* profiler_set_problem(const char* name, int computed, int element, int output,
                                        const char* epilogue, const int* extents,
                                        const int* columns, const float* params,
                                        const float* limits) {
  return Guarded([&]() -> const char* {
    SetProblem(name, [&](size_t l2_bytes) -> std::unique_ptr<Problem> {
      if (Computed(computed) == Computed::kNorm)
        return std::make_unique<Norm>(DescribeNorm(element, epilogue, extents, limits), l2_bytes);
      if (Computed(computed) == Computed::kAttention)
        return std::make_unique<Attention>(DescribeAttention(element, extents, limits), l2_bytes);
      if (Computed(computed) == Computed::kBatchedGemms)
        return std::make_unique<Products>(
            DescribeBatches(element, output, epilogue, extents, columns, params, limits), l2_bytes);
      const bool is_gemm =
          Computed(computed) == Computed::kGemms || Computed(computed) == Computed::kQuantizedGemms;
      Description description =
          Describe(is_gemm, element, output, epilogue, extents, columns, params, limits);
      if (Computed(computed) == Computed::kConvTranspose)
        description = DescribePhases(std::move(description), extents);
      if (description.of_codes()) description = DescribeCodes(std::move(description), extents);
      return std::make_unique<Products>(description, l2_bytes);
    });
    return nullptr;
  });
}

// Checks one launch of each kernel: the relative L2 error, and the largest error of one value in
// parts of its limit; infinite if an output was not written or is not finite.
EXPORT const char* profiler_check(const Launched* kernels, int count, double* error,
                                  double* excess) {
  return Guarded([&]() -> const char* {
    const Distance found = CheckAnswer(Candidate(kernels, count));
    *error = found.relative_l2, *excess = found.excess;
    return nullptr;
  });
}

// Microseconds of one launch of each, one number for each sample, and the SM clock right after
// them. Without `overlap` a launch begins when the one before it has ended, as those of kernels
// without programmatic dependent launch do.
EXPORT const char* profiler_time(const Launched* kernels, int count, int samples, int overlap,
                                 double* microseconds, int* clock_mhz) {
  return Guarded([&]() -> const char* {
    Time(Candidate(kernels, count), samples, overlap != 0, microseconds);
    *clock_mhz = Nvml::get().clock_mhz();
    return nullptr;
  });
}

// True if an error broke the context, so that nothing works in this process any more.
EXPORT int profiler_lost() {
  cudaGetLastError();
  return cudaDeviceSynchronize() != cudaSuccess;
}
