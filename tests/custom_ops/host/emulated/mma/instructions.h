// The functions of custom_ops/mma/instructions.h on the host (emulator.h).
#pragma once
#include "cutlass/numeric_types.h"
#include "emulator.h"

namespace onnxbolt {
namespace mma {

constexpr int kWarp = 32, kUnit = 16, kStep = 32;

using emulated::machine;
using emulated::Require;

inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - machine.memory);
}

inline const char* Shared(uint32_t address, int bytes) {
  Require(address % bytes == 0 && address + bytes <= emulated::kMemory,
          "an address in shared memory is not aligned, or outside");
  return machine.memory + address;
}

// The rows of four matrices, as the lanes name them.
inline void ShareRows(uint32_t row, uint32_t (&rows)[32]) {
  auto& words = emulated::OwnWarp().words;
  words[emulated::Lane()][0] = row;
  emulated::MeetWarp();
  for (int lane = 0; lane < 32; ++lane) rows[lane] = words[lane][0];
  emulated::MeetWarp();
  for (int i = 0; i < 32; ++i)
    for (int j = i / 8 * 8; j < i; ++j)
      Require(rows[i] % 128 != rows[j] % 128, "rows of a matrix lie in the same banks");
}

inline void LoadMatrices(uint32_t (&to)[4], uint32_t row) {
  uint32_t rows[32];
  ShareRows(row, rows);
  const int lane = emulated::Lane();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&to[i], Shared(rows[8 * i + lane / 4], kUnit) + lane % 4 * 4, 4);
}

inline void LoadTransposed(uint32_t (&to)[4], uint32_t row) {
  uint32_t rows[32];
  ShareRows(row, rows);
  const int lane = emulated::Lane();
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e)
      std::memcpy(&pair[e], Shared(rows[8 * i + lane % 4 * 2 + e], kUnit) + lane / 4 * 2, 2);
    std::memcpy(&to[i], pair, 4);
  }
}

inline uint32_t LoadWord(uint32_t address) {
  uint32_t word;
  std::memcpy(&word, Shared(address, 4), 4);
  return word;
}

inline uint32_t RoundToTf32(uint32_t number) { return (number + 0x1000) & ~0x1fffu; }

template <class Element>
uint32_t Pack(float low, float high) {
  const Element values[2] = {Element(low), Element(high)};
  uint32_t packed;
  std::memcpy(&packed, values, 4);
  return packed;
}

inline float Exp2(float x) { return std::exp2(x); }

template <class Element>
double At(uint32_t word, int index) {
  if constexpr (sizeof(Element) == 4) {
    Require(word % 0x2000 == 0, "an operand is not rounded to TF32");
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  } else {
    Element values[2];
    std::memcpy(values, &word, 4);
    return float(values[index]);
  }
}

// One instruction: `parts` words of a lane along k of each row, for both operands.
template <class Element>
void MultiplyPart(float (&sums)[4], const uint32_t* a, const uint32_t* b, int parts) {
  constexpr int kOfWord = 4 / sizeof(Element);
  auto& words = emulated::OwnWarp().words;
  const int lane = emulated::Lane();
  for (int i = 0; i < 2 * parts; ++i) words[lane][i] = a[i];
  for (int i = 0; i < parts; ++i) words[lane][4 + i] = b[i];
  emulated::MeetWarp();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    double sum = sums[e];
    for (int part = 0; part < parts; ++part)
      for (int k = 0; k < 4; ++k)
        for (int i = 0; i < kOfWord; ++i)
          sum += At<Element>(words[row * 4 + k][2 * part + e / 2], i) *
                 At<Element>(words[column * 4 + k][4 + part], i);
    sums[e] = float(sum);
  }
  emulated::MeetWarp();
}

template <class Element, int Depth>
void Multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  if constexpr (Depth * sizeof(Element) == kStep) {
    MultiplyPart<Element>(sums, a, b, 2);
  } else {
    static_assert(2 * Depth * sizeof(Element) == kStep);
    MultiplyPart<Element>(sums, a, b, 1);
    MultiplyPart<Element>(sums, a + 2, b + 1, 1);
  }
}

template <int Bytes>
void CopyAsync(void* to, const void* from, int size) {
  Require(reinterpret_cast<uintptr_t>(from) % Bytes == 0 || size == 0, "a copy is not aligned");
  Shared(SharedAddress(to), Bytes);
  const emulated::Copy copy{to, from, Bytes, size};
  machine.eager ? emulated::Finish({copy}) : emulated::Own().groups.back().push_back(copy);
}

inline void CommitCopies() { emulated::Own().groups.emplace_back(); }

template <int Pending>
void WaitForCopies() {
  auto& groups = emulated::Own().groups;
  for (; groups.size() > Pending + 1; groups.pop_front()) emulated::Finish(groups.front());
}

}  // namespace mma
}  // namespace onnxbolt
