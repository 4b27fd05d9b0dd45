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
constexpr int kMaxVectors = 4, kMaxTensors = 2, kMaxParams = 8, kMaxLayers = 4;

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

// Kernel families.
enum class Family : int64_t {
  kGemm2x = 1,
  kGemm3x = 2,
  kConv2x = 3,
  kPool = 4,
  kGemmSm90 = 5,
  kConvSm90 = 6,
  kHaloSm90 = 7,
  kStemSm90 = 8,
  kDepthwise = 9,
  kSqueezeExcite = 10,
  kElementwise = 11,
  kLayout = 12,
  kB2bGemmSm90 = 13,
  kB2bConvSm90 = 14,
  kB2bHaloSm90 = 15,
  kB2bStemSm90 = 16,
  kB2bGemmSmall = 17,
  kB2bGemm2x = 18,
  kResize = 19,
  kB2bGemmWideSm90 = 20,
  kB2bStoredSm90 = 21,
  kGemmRowsSm90 = 22,
  kB2bConv2x = 23,
};

// Families whose swizzle, or whose warp columns, are read at launch: rows of one kernel
// differ in them.
constexpr Family kSwizzledAtLaunch[] = {Family::kGemm3x, Family::kGemmSm90, Family::kConvSm90};
constexpr Family kTiledAtLaunch[] = {Family::kHaloSm90, Family::kB2bHaloSm90};

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

// Element types by their number in ONNX (TensorProto.DataType).
constexpr int kTypeF16 = 10, kTypeBF16 = 16, kTypeF32 = 1;
struct ElementFacts {
  int type;
  const char* name;
  int bytes;
};
constexpr ElementFacts kElements[] = {
    {kTypeF16, "f16", 2},
    {kTypeBF16, "bf16", 2},
    {kTypeF32, "f32", 4},
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
