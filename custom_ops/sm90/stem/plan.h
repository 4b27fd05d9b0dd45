// A block of a stem convolution: its constants, its shared memory, the parameters of a launch, its
// tiles.
#pragma once
#include "cutlass/fast_math.h"
#include "runtime/instance.h"
#include "runtime/integers.h"
#include "sm90/codes.h"

namespace onnxbolt {
namespace stem {

constexpr int kGroupThreads = 128;  // threads of a warpgroup
constexpr int kTileColumns =
    16;  // output pixels of a tile's row: a warp's part of 64 rows of a product
constexpr int kUnitRows = 4;      // output rows of a product
constexpr int kQuad = 4;          // columns of x that are loaded together
constexpr int kChunk = 8;         // values along k that lie side by side: half of an instruction's
constexpr int kStepsAtOnce = 6;   // steps whose fragments are in registers at a time
constexpr int kChunksAtOnce = 4;  // chunks of weights that a thread loads at a time

template <class T>
struct Same {
  using Type = T;
};

// Constants of an instance.
//
// The pixels under a tile lie in shared memory as rows of [columns][channels], so that a row of the
// filter meets one run of elements; k counts these runs, each rounded up to chunks. A lane reads
// pairs of neighbouring elements, so channels are padded by one if pixels would begin at odd
// elements.
//
// Columns: of the output, if another product follows; then Chain is that product's epilogue.
//
// Where results are codes, weights lie in the order by which a thread has neighbouring columns
// (sm90/codes.h).
template <class Config, class ElementType, class OutputType, class ChainType,
          int Columns = Config::at(kTileN)>
struct Plan {
  using Row = Config;
  using Element = ElementType;
  using Output = OutputType;
  static constexpr bool kCodes = sizeof(Output) == 1;  // results are codes of 8 bits
  using Chain = typename std::conditional_t<kCodes, sm90::ChainOfCodes<Output, ChainType>,
                                            Same<ChainType>>::Type;
  using Finish = sm90::EpilogueShape<Element, Output, Chain, 1, Columns>;
  using Epilogue = std::conditional_t<kCodes, sm90::CodesEpilogue<Finish>, sm90::Epilogue<Finish>>;
  static constexpr int kGroups = Row::at(kConsumers), kThreads = kGroups * kGroupThreads;
  static constexpr int kN = Row::at(kTileN), kTileRows = Row::at(kTileM) / kTileColumns,
                       kUnits = kTileRows / kUnitRows;
  static constexpr int kR = Row::at(kWarpM), kS = Row::at(kWarpN), kC = Row::at(kWarpK);
  static constexpr int kStrideH = Row::at(kInstructionM), kStrideW = Row::at(kInstructionN);

  static constexpr int kStoredC = kStrideW * kC % 2 == 0 ? kC : kC + 1;
  static constexpr int kRun = kS * kStoredC;  // elements of a filter row
  static constexpr int kRunChunks = CeilDivide(kRun, kChunk);
  static constexpr int kTailElements =
      kRun - (kRunChunks - 1) * kChunk;  // elements of a run's last chunk
  static constexpr int kChunks = kR * kRunChunks, kSteps = CeilDivide(kChunks, 2),
                       kDepth = kSteps * 2 * kChunk;

  static constexpr int kPatchRows = (kTileRows - 1) * kStrideH + kR,
                       kPatchColumns = (kTileColumns - 1) * kStrideW + kS;
  static constexpr int kRowQuads =
      CeilDivide(kPatchColumns + kQuad - 1,
                 kQuad);  // enough for each column of a quad that the patch may begin at
  static constexpr int kPatchPitch = kRowQuads * kQuad * kStoredC;
  static constexpr int kLoads = CeilDivide(kPatchRows * kRowQuads, kGroupThreads);

  static constexpr int kStepBytes = kN * 2 * kChunk * sizeof(Element),
                       kWeightBytes = kSteps * kStepBytes;
  // one element before the first row, and those that are read and masked behind the last
  static constexpr int kPatchBytes =
      RoundUp((1 + kPatchRows * kPatchPitch + kChunk) * sizeof(Element), 16);
  static constexpr int kWeightOffset = kGroups * Finish::kStagingBytes,
                       kVectorOffset = kWeightOffset + kWeightBytes;
  static constexpr int kPatchOffset = RoundUp(kVectorOffset + kGroups * Finish::kVectorBytes, 16);
  static constexpr int kSharedMemory = kPatchOffset + kGroups * kPatchBytes;

  static_assert(ArchOf<Row>::kWgmma && ArchOf<Row>::kTma, "the kernel needs wgmma and TMA");
  static_assert(sizeof(Element) == 2, "stem convolutions multiply fp16 and bf16");
  static_assert(Chain::kTensors == 0, "a stem convolution has no residual");
  static_assert(kUnits * kUnitRows * kTileColumns == Row::at(kTileM) && kDepth == Row::at(kTileK),
                "the tile fits the filter");
  static_assert(Finish::kStagingBytes % 1024 == 0 || Columns < 64, "units begin where swizzles do");
  static_assert(!kCodes || Columns % sm90::kPairedColumns == 0, "codes are stored in pairs");
  static_assert(kSharedMemory <= ArchOf<Row>::kSharedMemory, "no room for the weights");
};

template <class Plan>
struct Memory {
  char* base;

  __device__ sm90::EpilogueMemory<typename Plan::Finish> epilogue(int group) const {
    char* vectors = base + Plan::kVectorOffset + group * Plan::Finish::kVectorBytes;
    return {base + group * Plan::Finish::kStagingBytes, reinterpret_cast<float*>(vectors), nullptr,
            nullptr};
  }
  __device__ char* weights() const { return base + Plan::kWeightOffset; }
  __device__ typename Plan::Element* patch(int group) const {
    return reinterpret_cast<typename Plan::Element*>(base + Plan::kPatchOffset +
                                                     group * Plan::kPatchBytes);
  }
};

struct Params {
  CUtensorMap y;
  cutlass::FastDivmod row_tiles, column_tiles;
  int tiles;  // tiles of all images, for one block of output channels
  int h, w, k, pad_top, pad_left;
  const void *x, *filter;
  EpilogueArguments epilogue;
};

// A tile's image and its first output pixel.
struct Tile {
  int image, row, column;

  template <class Plan>
  __device__ static Tile at(const Params& params, int index, Plan) {
    int rows, row, column, image;
    params.column_tiles(rows, column, index);
    params.row_tiles(image, row, rows);
    return {image, row * Plan::kTileRows, column * kTileColumns};
  }
};

// The place where the epilogue stores a unit: four rows of sixteen pixels, one by each warp,
// without those outside of the image.
struct ImageOutput {
  const CUtensorMap& map;
  int image, row, pixel_column, column;

  CUTLASS_DEVICE void store(const void* staged, int pixel, int tile_column) const {
    static_assert(sm90::kStoredRows == kTileColumns, "a store takes a row of the image");
    sm90::Store4D(map, staged, column + tile_column, pixel_column, row + pixel / kTileColumns,
                  image);
  }
};

}  // namespace stem
}  // namespace onnxbolt
