// From a node's inputs to launches: tensors, places of channels, slices.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>

#include "runtime/fused_kernel.h"

namespace onnxbolt {
namespace {

using ort::Shape;
using ort::ToString;

// A slice of at most `count`, so that the next one begins at a multiple of 16 bytes as well.
int64_t SliceOf(int64_t count) { return count > 8 ? count / 8 * 8 : std::max<int64_t>(count, 1); }

// A table of a rotation, which repeats along the rows of y.
RotationArguments Repeated(const Shape& table, const Shape& y) {
  const int64_t width = table.empty() ? 0 : table.back(),
                rows = width ? Elements(table) / width : 0, y_rows = Elements(y) / y.back();
  if (rows == 0 ? y_rows > 0 : y_rows % rows != 0)
    Refuse("the table of a rotation has shape " + ToString(table) + ", which does not repeat in " +
           ToString(y));
  RotationArguments rotation;
  rotation.rows = AsInt(std::max<int64_t>(rows, 1)), rotation.width = AsInt(width);
  return rotation;
}

}  // namespace

EpilogueArguments FusedKernel::ReadEpilogue(Buffers& buffers, const Shape& y) const {
  EpilogueArguments epilogue;
  std::copy(params_.begin(), params_.end(), epilogue.params);
  if (kind_.reads_operands) return epilogue;
  size_t vectors = 0, tensors = 0;
  for (size_t i = 0; op_.operands[i] && op_.operands[i] != 'y'; ++i) {
    if (op_.operands[i] == 'r') {
      const OrtValue* table = buffers.Input(op_.first_operand + i);
      epilogue.rotation = Repeated(ort::ShapeOf(table), y);
      epilogue.rotation.table = buffers.Read(table, op_.element);
      continue;
    }
    const bool vector = op_.operands[i] == 'v';
    const bool tensor = op_.operands[i] == 't' || op_.operands[i] == 'u';
    if (!vector && !tensor) continue;  // the op's own
    const size_t index = op_.first_operand + i;
    const OrtValue* value = buffers.Input(index);
    RequireShape(index, ort::ShapeOf(value), vector ? Shape{operation_->VectorSize(y)} : y);
    if (vector) {
      epilogue.vectors[vectors++] = static_cast<const float*>(buffers.Read(value, kTypeF32));
    } else {
      epilogue.tensor_pitch[tensors] = y.back();
      epilogue.tensors[tensors++] = buffers.Read(value, TypeOfTensors(op_));
    }
  }
  return epilogue;
}

// The output, or the node's channels of it. What earlier nodes wrote is there already, but where
// the output is the graph's: ORT makes that one anew.
void FusedKernel::PlaceOutput(Tensors* tensors) const {
  Buffers& buffers = *tensors->buffers;
  const Shape whole = placement_->Whole(Written(op_, tensors->y_shape));
  void* const data = buffers.Write(0, op_.to_nchw ? placement_->Nchw(whole) : whole, op_.output);
  if (const size_t input = WrittenInto(op_); input != kNowhere) {
    const OrtValue* before = buffers.Input(input);
    RequireShape(input, ort::ShapeOf(before), whole);
    if (ort::DataOf(before) != data)
      buffers.Copy(data, ort::DataOf(before), Elements(whole) * BytesOf(op_.output));
  }
  tensors->y_data = Behind(data, placement_->before, op_.output);
  tensors->y_pitch = whole.back();
}

void FusedKernel::Compute(OrtKernelContext* context) const {
  Buffers buffers(context, allocator_.get());
  Tensors tensors{};
  tensors.buffers = &buffers;
  tensors.x = buffers.Input(0);
  tensors.x_shape =
      op_.nchw_input ? ChannelsLast(ort::ShapeOf(tensors.x)) : ort::ShapeOf(tensors.x);
  tensors.x_pitch = tensors.x_shape.empty() ? 0 : tensors.x_shape.back();
  tensors.x_shape = placement_->Channels(std::move(tensors.x_shape));
  tensors.x_data = Behind(buffers.Read(tensors.x, TypeOfX(op_)), placement_->begin, op_.element);
  if (HasWeight(op_)) {
    const OrtValue *first = buffers.Input(1), *last = buffers.Input(LastWeight(op_));
    tensors.weight_shape = operation_->Weight(ort::ShapeOf(first), ort::ShapeOf(last));
    tensors.weight_data = buffers.Read(last, op_.element);
  }
  tensors.y_shape = tensors.whole_y =
      operation_->OutputOfRun(tensors.x_shape, tensors.weight_shape, buffers);
  tensors.columns = operation_->Columns(tensors.y_shape);
  tensors.epilogue = ReadEpilogue(buffers, tensors.y_shape);
  PlaceOutput(&tensors);
  if (op_.stores) {
    tensors.stored_channels =
        HasWeight(op_) ? ort::ShapeOf(buffers.Input(1))[0] : tensors.y_shape.back();
    tensors.stored_data =
        buffers.Write(1, RowsOf(tensors.y_shape, tensors.stored_channels), TypeOfStored(op_));
  }
  if (Elements(Written(op_, tensors.y_shape)) == 0) return;
  RunInSlices(context, std::move(tensors));
  buffers.Finish();
}

// Kernels count in 32 bits, some of them elements or bytes of a whole tensor, and say themselves
// what is too large for them. Then rows of products, else images, are launched slice by slice.
void FusedKernel::RunInSlices(OrtKernelContext* context, Tensors whole) const {
  if (kind_.in_rows) {
    const int64_t rows = whole.rows();
    whole.x_shape = {rows, whole.x_shape.back()}, whole.y_shape = {rows, whole.y_shape.back()};
  }
  const int64_t total = whole.y_shape[0], rows = whole.rows() / total;
  int64_t count = std::clamp<int64_t>(INT_MAX / rows, 1, total);
  if (count < total) count = SliceOf(count);
  const char* const refusal = RunSlice(context, Slice(whole, 0, count));
  for (const char* again = refusal; again; again = RunSlice(context, Slice(whole, 0, count))) {
    if (count == 1)
      throw ort::Error(ort::kRuntimeException, Describe(Slice(whole, 0, count)) + ": " + refusal);
    count = SliceOf(count / 2);
  }
  for (int64_t first = count; first < total; first += count) {
    const Tensors slice = Slice(whole, first, std::min(count, total - first));
    if (const char* error = RunSlice(context, slice))
      throw ort::Error(ort::kRuntimeException, Describe(slice) + ": " + error);
  }
}

Tensors FusedKernel::Slice(const Tensors& whole, int64_t first, int64_t count) const {
  Tensors slice = whole;
  const auto pixels = [](const Shape& shape) {
    return Elements(Shape(shape.begin() + 1, shape.end() - 1));
  };
  const int64_t rows = pixels(whole.y_shape),
                y_channels =
                    op_.to_nchw ? whole.y_shape.back() - placement_->padding : whole.y_pitch;
  slice.first_row = first * rows;
  slice.x_data = Behind(whole.x_data, first * pixels(whole.x_shape) * whole.x_pitch, TypeOfX(op_));
  slice.y_data =
      Behind(whole.y_data, first * pixels(Written(op_, whole.y_shape)) * y_channels, op_.output);
  if (whole.stored_data)
    slice.stored_data =
        Behind(whole.stored_data, slice.first_row * whole.stored_channels, TypeOfStored(op_));
  for (int i = 0; i < kMaxTensors; ++i) {
    const void*& tensor = slice.epilogue.tensors[i];
    if (tensor)
      tensor = Behind(tensor, slice.first_row * whole.epilogue.tensor_pitch[i], TypeOfTensors(op_));
  }
  slice.x_shape[0] = slice.y_shape[0] = count;
  return slice;
}

const char* FusedKernel::RunSlice(OrtKernelContext* context, const Tensors& tensors) const {
  return operation_->Launch(
      tensors, [&](const void* arguments) { return LaunchRow(context, tensors, arguments); });
}

}  // namespace onnxbolt
