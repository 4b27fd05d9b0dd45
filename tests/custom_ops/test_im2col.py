"""Begin and end of TMA's im2col copies (custom_ops/sm90/convolution.h and volume.h), against the
pixels that ONNX's Conv reads."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.codegen.compilation import compile_program


class Case(NamedTuple):
    """A convolution of an image of h x w, pads top, left, bottom, right."""

    h: int
    w: int
    r: int
    s: int
    pads: tuple[int, int, int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]

    def outputs(self) -> tuple[int, int]:
        """Height and width, as ONNX has them."""
        reach = (self.dilations[0] * (self.r - 1), self.dilations[1] * (self.s - 1))
        spans = [
            size + self.pads[i] + self.pads[i + 2] - reach[i] - 1
            for i, size in enumerate((self.h, self.w))
        ]
        return spans[0] // self.strides[0] + 1, spans[1] // self.strides[1] + 1


CASES = [
    Case(h, w, r, s, pads, strides, dilations)
    for (h, w), (r, s), pads, strides, dilations in itertools.product(
        ((14, 13), (9, 31)),
        ((3, 3), (5, 2), (1, 4)),
        ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (0, 1, 2, 3), (3, 2, 1, 0)),
        ((1, 1), (2, 1), (2, 3)),
        ((1, 1), (2, 1)),
    )
]
_PROGRAM = """
#include <cstdio>
#include "sm90/volume.h"

using namespace onnxbolt::sm90;

int main() {
  onnxbolt::ConvArguments conv{};
CASES
}
"""
_FIELDS = (
    "h",
    "w",
    "r",
    "s",
    "pad_top",
    "pad_left",
    "pad_bottom",
    "pad_right",
    "stride_h",
    "stride_w",
    "dilation_h",
    "dilation_w",
)


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, ...]]:
    """The lower corners of height and width, the upper ones, and then those of a depth that is like
    the height, of each case."""
    lines = []
    for case in CASES:
        numbers = (case.h, case.w, case.r, case.s, *case.pads, *case.strides, *case.dilations)
        set_fields = " ".join(
            f"conv.{field} = {number};" for field, number in zip(_FIELDS, numbers, strict=True)
        )
        lines.append(
            f"  {{ {set_fields}\n"
            "    conv.depth = {conv.h, conv.r, 1, conv.pad_top, conv.pad_bottom, conv.stride_h,"
            " conv.dilation_h};\n"
            "    const auto h = HeightOf(conv), w = WidthOf(conv), d = DepthOf(conv.depth);\n"
            '    std::printf("%d %d %d %d %d %d\\n", h.lower, w.lower, h.upper, w.upper, d.lower,'
            " d.upper); }"
        )
    source: Path = tmp_path_factory.mktemp("corners") / "corners.cu"
    program = compile_program(source, _PROGRAM.replace("CASES", "\n".join(lines)))
    printed = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [tuple(map(int, line.split())) for line in printed]


def test_first_taps_begin_in_the_padding(corners: list[tuple[int, ...]]) -> None:
    assert [at[:2] for at in corners] == [(-case.pads[0], -case.pads[1]) for case in CASES]


def test_depth_is_an_axis_as_height_is(corners: list[tuple[int, ...]]) -> None:
    assert [at[4:] for at in corners] == [(at[0], at[2]) for at in corners]


def test_as_many_first_taps_as_outputs_lie_between_the_corners(
    corners: list[tuple[int, ...]],
) -> None:
    """TMA's first taps lie a stride apart, from the lower corner to the upper one, which counts
    from the image's last pixel."""
    for case, at in zip(CASES, corners, strict=True):
        counts = [
            (size - 1 + at[2 + i] - at[i]) // case.strides[i] + 1
            for i, size in enumerate((case.h, case.w))
        ]
        assert tuple(counts) == case.outputs(), case
