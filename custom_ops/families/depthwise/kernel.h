// Depthwise convolution in NHWC for every architecture (channelwise/convolution.h).
#pragma once
#include "channelwise/convolution.h"

namespace onnxbolt {

template <class Config, class ElementType, class OutputType, class Chain>
struct Depthwise : depthwise::Convolution<Config, ElementType, OutputType, Chain> {};

}  // namespace onnxbolt
