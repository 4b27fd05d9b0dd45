// The interface of an op kind: the shapes of its nodes, and the arguments of its kernels. Each kind
// is a class in custom_ops/ops/ that registers itself.
#pragma once
#include <functional>
#include <memory>

#include "runtime/attributes.h"
#include "runtime/manifest.h"
#include "runtime/tensors.h"

namespace onnxbolt {

// Launches the kernel with these arguments. Returns nullptr, or why it does not take them.
using Run = std::function<const char*(const void* arguments)>;

// One node. Immutable once it is made: ORT runs a node from many threads at once.
class Operation {
 public:
  virtual ~Operation() = default;

  // The shape of a node's weights as `Output` takes it, from those of the first and the last one.
  virtual ort::Shape Weight(const ort::Shape&, const ort::Shape& last) const { return last; }

  // The shape of y in NHWC. Throws ort::Error if ranks or channels do not fit.
  virtual ort::Shape Output(const ort::Shape& x, const ort::Shape& weight) const = 0;

  // The shape of y of one run, for ops whose inputs behind x and the weight say it.
  virtual ort::Shape OutputOfRun(const ort::Shape& x, const ort::Shape& weight,
                                 const Buffers&) const {
    return Output(x, weight);
  }

  // Names of y's dimensions, from those of x's; those of known dimensions are not used.
  virtual Symbols Names(Symbols x, const ort::Shape& x_shape, const ort::Shape& weight) const = 0;

  // Elements of y in one row of the kernel's problem: rows choose among its configurations.
  virtual int64_t Columns(const ort::Shape& y) const { return y.back(); }

  // Elements of an epilogue's vector.
  virtual int64_t VectorSize(const ort::Shape& y) const { return y.back(); }

  // Makes the kernel's arguments of `tensors` and passes them to `run`.
  virtual const char* Launch(const Tensors& tensors, const Run& run) const = 0;
};

using MakeOperation = std::unique_ptr<const Operation> (*)(const Op& op,
                                                           const Attributes& attributes);

// A kind of op in the library's table.
struct OpKind {
  // Registers it (static initialization).
  OpKind(const char* name, MakeOperation make, bool in_rows, bool reads_operands);

  const char* name;  // as the manifest has it
  MakeOperation make;
  bool in_rows;         // true if a slice of a launch may begin with any row; false: with an image
  bool reads_operands;  // true if Launch reads the inputs behind x; false: they are one epilogue's
  const OpKind* next;
};

// The runtime's treatment of the inputs of a kind's nodes.
enum class Cut { kImages, kRows };
enum class Operands { kOneEpilogue, kOwn };

// const RegisteredKind<Gemm> kGemm("gemm", Cut::kRows);
template <class Kind>
struct RegisteredKind : OpKind {
  explicit RegisteredKind(const char* name, Cut cut = Cut::kImages,
                          Operands operands = Operands::kOneEpilogue)
      : OpKind(
            name,
            [](const Op& op, const Attributes& attributes) -> std::unique_ptr<const Operation> {
              return std::make_unique<const Kind>(op, attributes);
            },
            cut == Cut::kRows, operands == Operands::kOwn) {}
};

// Finds a kind by name. Throws ort::Error if the library has no such kind.
const OpKind& FindKind(const char* name);

}  // namespace onnxbolt
