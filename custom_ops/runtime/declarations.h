// Generated from Python's declarations by: python -m onnxbolt.codegen.declarations
// clang-format off
#pragma once
#include <cstdint>

namespace onnxbolt {

// Names and numbers that models and sessions hold
// (onnxbolt/domains.py, onnxbolt/names.py).
constexpr char kDomain[] = "com.onnxbolt";
constexpr int64_t kNodeFormat = 1;
// session configuration entries
constexpr char kEnableEntry[] = "onnxbolt.enable", kDeviceEntry[] = "onnxbolt.device";

// Room for an epilogue's operands, and for products in one kernel (onnxbolt/epilogues/).
constexpr int kMaxVectors = 4, kMaxTensors = 2, kMaxParams = 12, kMaxLayers = 4;
// Embeddings that one kernel adds up (onnxbolt/problems/norm.py).
constexpr int kMaxTables = 3;

// Columns of a configuration row (onnxbolt/families/row.py).
constexpr int kConfigWidth = 25;
enum Column {
  kArch,
  kMinM,
  kMaxM,
  kFamily,
  kTileM,
  kTileN,
  kTileK,
  kWarpM,
  kWarpN,
  kWarpK,
  kInstructionM,
  kInstructionN,
  kInstructionK,
  kStages,
  kSwizzle,
  kClusterM,
  kClusterN,
  kSchedule,
  kAlignA,
  kAlignB,
  kAlignC,
  kIterator,
  kSplitK,
  kConsumers,
  kResident,
};

enum Schedule {
  kNoSchedule = 0,
  kCooperative = 1,
  kPingpong = 2,
};

enum Iterator {
  kNoIterator = 0,
  kAnalytic = 1,
  kOptimized = 2,
  kFixedChannels = 3,
};

enum Offsets {
  kNoOffsets = 0,
  kByColumn = 1,
  kByPixel = 2,
};

// How a resizing samples, by the numbers that a node carries (ONNX, Resize).
enum class ResizeMode : int {
  kNearest = 0,
  kLinear = 1,
  kCubic = 2,
};
enum class Coordinates : int {
  kHalfPixel = 0,
  kPytorchHalfPixel = 1,
  kAsymmetric = 2,
  kAlignCorners = 3,
};
enum class Rounding : int {
  kPreferFloor = 0,
  kPreferCeil = 1,
  kFloor = 2,
  kCeil = 3,
};

// How a grid samples, by the numbers that a node carries (ONNX, GridSample).
enum class SampleMode : int {
  kNearest = 0,
  kLinear = 1,
};
enum class Outside : int {
  kZeros = 0,
  kBorder = 1,
  kReflection = 2,
};

// Element types by their number in ONNX (TensorProto.DataType).
constexpr int kTypeF16 = 10, kTypeBF16 = 16, kTypeF32 = 1, kTypeI8 = 3, kTypeU8 = 2, kTypeE4M3 = 17;
constexpr int kTypeBool = 9;  // masks have it
constexpr int kTypeI32 = 6, kTypeI64 = 7;  // indices have them
struct ElementFacts {
  int type;
  const char* name;
  int bytes;
  int weight;  // the type of the weights by which it is multiplied
};
constexpr ElementFacts kElements[] = {
    {kTypeF16, "f16", 2, kTypeF16},
    {kTypeBF16, "bf16", 2, kTypeBF16},
    {kTypeF32, "f32", 4, kTypeF32},
    {kTypeI8, "i8", 1, kTypeI8},
    {kTypeU8, "u8", 1, kTypeI8},
    {kTypeE4M3, "e4m3", 1, kTypeE4M3},
};

// Names of architectures by their number in configurations, for messages.
struct KnownArch {
  int number;
  const char* name;
};
constexpr KnownArch kKnownArchs[] = {
    {75, "sm_75"},
    {80, "sm_80"},
    {86, "sm_86"},
    {89, "sm_89"},
    {90, "sm_90a"},
};

}  // namespace onnxbolt
