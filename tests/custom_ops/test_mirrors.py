"""Structures of the C++ sources that Python fills in: as large, and each field where Python puts
it."""

from __future__ import annotations

import ctypes
import enum
import subprocess
from pathlib import Path

import pytest

from onnxbolt.codegen.declarations import constant
from onnxbolt.ops.attention.found import Masked, Masking
from tests.codegen.compilation import compile_program
from tests.gpu import device

MIRRORS = {
    "HeadsView": device.HeadsView,
    "HeadsOutput": device.HeadsView,
    "ScoreMask": device.ScoreMask,
    "Windows": device.Windows,
    "AttentionArguments": device.Attention,
    "CodedAttentionArguments": device.CodedAttention,
    "EpilogueArguments": device.Epilogue,
    "RotationArguments": device.Rotation,
    "GemmArguments": device.Gemm,
    "PhasedPixels": device.PhasedPixels,
    "DepthAxis": device.DepthAxis,
    "ConvArguments": device.Conv,
    "OffsetArguments": device.Offsets,
    "QuantizedGemmArguments": device.QuantizedGemm,
    "QuantizedConvArguments": device.QuantizedConv,
    "PoolArguments": device.Pool,
    "LayoutArguments": device.Layout,
    "ResizeArguments": device.Resize,
    "PixelShuffleArguments": device.PixelShuffle,
    "GridSampleArguments": device.GridSample,
    "ElementwiseArguments": device.Elementwise,
    "ChainArguments": device.Chain,
    "ConvChainArguments": device.ConvChain,
    "NormArguments": device.Norm,
    "ModulatedNormArguments": device.ModulatedNorm,
    "Embedding": device.Embedding,
    "GroupNormArguments": device.GroupNorm,
    "SqueezeExciteArguments": device.SqueezeExcite,
}
# Python's enumerations whose members a node names by their position
NUMBERED: tuple[type[enum.Enum], ...] = (Masking, Masked)
_PROGRAM = """
#include <cstddef>
#include <cstdio>
#include "ops/attention/arguments.h"
#include "ops/conv_chain/arguments.h"
#include "ops/elementwise/arguments.h"
#include "ops/gemm/arguments.h"
#include "ops/group_norm/arguments.h"
#include "ops/layout/arguments.h"
#include "ops/norm/arguments.h"
#include "ops/pool/arguments.h"
#include "ops/quantized/arguments.h"
#include "ops/grid_sample/arguments.h"
#include "ops/pixel_shuffle/arguments.h"
#include "ops/resize/arguments.h"
#include "ops/squeeze_excite/arguments.h"
using namespace onnxbolt;

int main() {
PRINTS
}
"""


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The size of each structure and the offsets of its fields; the numbers of each enumeration."""
    lines = [
        ", ".join(
            [f"sizeof({name})", *(f"offsetof({name}, {field})" for field, *_ in mirror._fields_)]
        )
        for name, mirror in MIRRORS.items()
    ]
    lines += [
        ", ".join(f"size_t({each.__name__}::{constant(member.name.lower())})" for member in each)
        for each in NUMBERED
    ]
    prints = [
        f'  for (size_t number : {{{line}}}) std::printf("%zu ", number);\n  std::puts("");'
        for line in lines
    ]
    source: Path = tmp_path_factory.mktemp("mirrors") / "mirrors.cu"
    program = compile_program(source, _PROGRAM.replace("PRINTS", "\n".join(prints)))
    printed = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [*MIRRORS, *(each.__name__ for each in NUMBERED)]
    return {name: list(map(int, line.split())) for name, line in zip(names, printed, strict=True)}


@pytest.mark.parametrize("name", MIRRORS)
def test_fields_lie_where_python_puts_them(layouts: dict[str, list[int]], name: str) -> None:
    mirror = MIRRORS[name]
    assert layouts[name] == [
        ctypes.sizeof(mirror),
        *(getattr(mirror, field).offset for field, *_ in mirror._fields_),
    ]


@pytest.mark.parametrize("kind", NUMBERED)
def test_words_have_the_same_numbers(layouts: dict[str, list[int]], kind: type[enum.Enum]) -> None:
    assert layouts[kind.__name__] == list(range(len(kind)))
