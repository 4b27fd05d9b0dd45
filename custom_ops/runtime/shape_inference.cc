#include "runtime/shape_inference.h"

#include <optional>

#include "runtime/operation.h"
#include "runtime/ort_objects.h"
#include "runtime/placement.h"

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
  Symbols symbols;
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

void SetOutput(OrtShapeInferContext* context, size_t index, int type, const Shape& dims,
               const Symbols& symbols) {
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
  const InferenceAttributes attributes(context);
  const Placement placement(attributes);
  const auto operation = FindKind(op.kind).make(op, attributes);
  SymbolicShape x = InputShape(context, 0);
  Shape first, weight;
  if (HasWeight(op)) {
    first = InputShape(context, 1).dims;
    weight = operation->Weight(first, InputShape(context, LastWeight(op)).dims);
  }
  if (x.dims.empty()) return;  // unknown rank
  if (op.nchw_input) x = {ChannelsLast(x.dims), ChannelsToLast(x.symbols)};
  x.dims = placement.Channels(x.dims);
  Shape y = Written(op, operation->Output(x.dims, weight));
  Symbols symbols = operation->Names(x.symbols, x.dims, weight);
  if (op.stores && (!HasWeight(op) || !first.empty())) {
    Shape stored = y;
    if (HasWeight(op)) stored.back() = first[0];  // a layer's columns are its weight's rows
    SetOutput(context, 1, TypeOfStored(op), stored, symbols);
  }
  if (op.to_nchw) y = placement.Nchw(y), symbols = ChannelsToFirst(symbols);
  if (placement.before + placement.after > 0) symbols.back().clear();
  SetOutput(context, 0, op.output, placement.Whole(y), symbols);
}

}  // namespace onnxbolt
