"""The choice of the widest access (custom_ops/runtime/variants.h), and who makes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onnxbolt.codegen.resources import resource_dir
from tests.codegen.compilation import compile_program

PROGRAM = """
#include <cstdio>
#include <cstdlib>

#include "runtime/variants.h"
ARCHS
struct Params {};
template <int Width, bool Second>
__global__ void kernel(Params) {}

template <class ElementType>
struct Some {
  using Element = ElementType;
  static constexpr int kSharedMemory = 0;
  template <int Width>
  static constexpr onnxbolt::Variant<Params, 2> variant() {
    return {Width, {kernel<Width, false>, kernel<Width, true>}};
  }
};

template <class Element>
void show(int channels) {
  const auto& found = onnxbolt::Variants<Some<Element>>::widest(
      [&](int width) { return channels % width == 0; });
  const bool own = found.width == 1 ? found.functions[1] == kernel<1, true>
                                    : found.functions[1] != kernel<1, true>;
  std::printf("%d%s ", found.width, own ? "" : " (of another width)");
}

int main() {
  for (int channels : {64, 12, 6, 5, 0}) {
    show<cutlass::half_t>(channels);
    show<float>(channels);
  }
}
"""


def test_the_widest_that_fits_is_taken(tmp_path: Path) -> None:
    program = compile_program(tmp_path / "widths.cu", PROGRAM)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["8", "4", "2", "4", "2", "1", "1", "1", "8", "4"]


@pytest.mark.parametrize(
    "family", ["elementwise", "grid_sample", "pixel_shuffle", "pool", "resize", "squeeze_excite"]
)
def test_families_leave_the_choice_to_the_shared_block(family: str) -> None:
    text = (resource_dir("custom_ops") / "families" / family / "kernel.h").read_text()
    assert "Variants<" in text
    assert "struct Variant" not in text
    assert "ReserveSharedMemory" not in text
