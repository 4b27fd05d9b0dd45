#include "runtime/shape_inference.h"

#include <optional>

#include "runtime/geometry.h"
#include "runtime/ort_objects.h"

namespace onnxbolt {
namespace {

using ort::Check;
using ort::Shape;
using ort::Succeeds;

class InferenceAttributes : public Attributes {
 public:
  explicit InferenceAttributes(const OrtShapeInferContext* context) : context_(context) {}

  Shape Ints(const char* name) const override {
    int64_t values[8];  // the longest is pads of two spatial dimensions
    size_t bytes = 0;
    const OrtOpAttr* attribute = Find(name);
    if (!attribute ||
        !Succeeds(ort::ReadAttribute(attribute, ort::kInts, values, sizeof values, &bytes)))
      return {};
    return Shape(values, values + bytes / sizeof *values);
  }

  std::vector<float> Floats(const char* name) const override {
    float values[8];
    size_t bytes = 0;
    const OrtOpAttr* attribute = Find(name);
    if (!attribute ||
        !Succeeds(ort::ReadAttribute(attribute, ort::kFloats, values, sizeof values, &bytes)))
      return {};
    return std::vector<float>(values, values + bytes / sizeof *values);
  }

  int64_t Int(const char* name, int64_t otherwise) const override {
    int64_t value = 0;
    size_t bytes = 0;
    const OrtOpAttr* attribute = Find(name);
    return attribute &&
                   Succeeds(ort::ReadAttribute(attribute, ort::kInt, &value, sizeof value, &bytes))
               ? value
               : otherwise;
  }

  float Float(const char* name, float otherwise) const override {
    float value = 0;
    size_t bytes = 0;
    const OrtOpAttr* attribute = Find(name);
    return attribute && Succeeds(ort::ReadAttribute(attribute, ort::kFloat, &value, sizeof value,
                                                    &bytes))
               ? value
               : otherwise;
  }

 private:
  const OrtOpAttr* Find(const char* name) const {
    const OrtOpAttr* attribute = nullptr;
    return Succeeds(ort::ShapeInferGetAttribute(context_, name, &attribute)) ? attribute : nullptr;
  }

  const OrtShapeInferContext* context_;
};

struct SymbolicShape {
  Shape dims;
  std::vector<std::string> symbols;  // "" for a known dimension, and for one that has no name
};

SymbolicShape InputShape(const OrtShapeInferContext* context, size_t index) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort::ShapeInferGetInput(context, index, &info));  // stays the context's
  SymbolicShape shape{ort::Dimensions(info), {}};
  std::vector<const char*> symbols(shape.dims.size(), "");
  if (!symbols.empty()) Check(ort::GetSymbolicDimensions(info, symbols.data(), symbols.size()));
  shape.symbols.assign(symbols.begin(), symbols.end());
  return shape;
}

// A name for an extent that follows from a named one. It is the formula, so that equal extents, and
// only they, are equally named.
std::string ExtentName(const Window& window, int axis, const std::string& input) {
  if (input.empty() || window.Keeps(axis)) return input;
  const int64_t padding =
      window.begin[axis] + window.end[axis] - window.dilation[axis] * (window.kernel[axis] - 1) - 1;
  const std::string bound =
      window.ceil_mode ? ",begin<" + input + "+" + std::to_string(window.begin[axis]) : "";
  return std::string(window.ceil_mode ? "ceil" : "floor") + "((" + input +
         (padding < 0 ? "" : "+") + std::to_string(padding) + ")/" +
         std::to_string(window.stride[axis]) + ")+1" + bound;
}

// Likewise for an extent that a scale gives; one that is given needs no name.
std::string ResizedName(const Resizing& resizing, int axis, const std::string& input) {
  if (input.empty() || resizing.Keeps(axis)) return input;
  return resizing.sizes.empty()
             ? "floor(" + input + "*" + std::to_string(resizing.scales[axis]) + ")"
             : "";
}

// Names of the output's dimensions; those of known dimensions are not used.
std::vector<std::string> OutputSymbols(const Geometry& geometry, const SymbolicShape& x,
                                       const Shape& weight) {
  std::vector<std::string> symbols = x.symbols;
  if (IsLayout(geometry.kind)) {
    if (geometry.padding) (geometry.kind == Kind::kToNhwc ? symbols[1] : symbols.back()).clear();
    return ChangeLayout(geometry.kind, symbols);
  }
  if (geometry.kind == Kind::kElementwise || geometry.kind == Kind::kSqueezeExcite) return symbols;
  symbols.back() = HasWeight(geometry.kind) ? "" : symbols.back();
  if (IsGemm(geometry.kind)) return symbols;
  if (geometry.kind == Kind::kResize) {
    for (int axis : {0, 1})
      symbols[axis + 1] = ResizedName(geometry.resizing, axis, symbols[axis + 1]);
    return symbols;
  }
  const Window window = geometry.WindowOver(x.dims, weight);
  for (size_t i = 1; i + 1 < symbols.size(); ++i)
    symbols[i] = ExtentName(window, static_cast<int>(i + 4 - symbols.size()) - 1, symbols[i]);
  return symbols;
}

void SetOutput(OrtShapeInferContext* context, size_t index, int type, const Shape& dims,
               const std::vector<std::string>& symbols) {
  std::vector<const char*> names;
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool known = dims[i] != kUnknown;
    if (!known && symbols[i].empty())
      return;  // ORT has no word for an anonymous dimension: better no shape than a wrong one
    names.push_back(known ? "" : symbols[i].c_str());
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort::CreateTensorTypeAndShape(&info));
  const ort::OwnedShape owned(info);
  Check(ort::SetElementType(info, type));
  Check(ort::SetDimensions(info, dims.data(), dims.size()));
  Check(ort::SetSymbolicDimensions(info, names.data(), names.size()));
  Check(ort::ShapeInferSetOutput(context, index, info));
}

}  // namespace

void InferShape(const Op& op, OrtShapeInferContext* context) {
  const Geometry geometry(op.kind, InferenceAttributes(context));
  SymbolicShape x = InputShape(context, 0);
  Shape first, weight;
  if (HasWeight(op.kind)) {
    first = InputShape(context, 1).dims;
    weight = WeightShape(op, first, InputShape(context, LastWeight(op)).dims);
  }
  if (x.dims.empty()) return;  // unknown rank
  if (op.planes) x = {ChannelsLast(x.dims), ChangeLayout(Kind::kToNhwc, x.symbols)};
  x.dims = geometry.Channels(x.dims);
  Shape y = Written(op, geometry.Output(x.dims, weight));
  std::vector<std::string> symbols = OutputSymbols(geometry, x, weight);
  if (op.stores && !first.empty()) {
    Shape stored = y;
    stored.back() = first[0];  // a layer's columns are its weight's rows
    SetOutput(context, 1, op.element, stored, symbols);
  }
  if (op.to_nchw) y = geometry.Planes(y), symbols = ChangeLayout(Kind::kToNchw, symbols);
  if (geometry.before + geometry.after > 0) symbols.back().clear();
  SetOutput(context, 0, op.output, geometry.Whole(y), symbols);
}

}  // namespace onnxbolt
