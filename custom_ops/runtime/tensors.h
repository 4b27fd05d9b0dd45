// The tensors of one launch: a node's, or a slice of them.
#pragma once
#include <type_traits>

#include "runtime/buffers.h"
#include "runtime/kernel.h"
#include "runtime/shapes.h"

namespace onnxbolt {

struct Tensors {
  const OrtValue* x;
  Buffers* buffers;
  ort::Shape x_shape, weight_shape, y_shape;  // those of x and y may be a slice's
  ort::Shape whole_y;
  int64_t first_row;  // the first row of y of a slice
  const void *x_data, *weight_data;
  void *y_data,
      *stored_data;  // the first layer's result if the op stores it, else nullptr
  int64_t stored_channels;
  int64_t x_pitch;  // channels of the first input, of which those of x_shape are read
  int64_t y_pitch;  // channels of the output, of which the node writes those of y_shape
  int64_t columns;  // elements of y in one row of the kernel's problem
  EpilogueArguments epilogue;

  int64_t rows() const { return Elements(y_shape) / columns; }
};

// `data` behind so many elements of an ONNX type.
template <class Data>
Data* Behind(Data* data, int64_t elements, int type) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  return static_cast<Byte*>(data) + elements * BytesOf(type);
}

}  // namespace onnxbolt
