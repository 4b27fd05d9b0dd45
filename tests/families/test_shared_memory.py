"""Shared memory of compiled kernels: Python's numbers are in the units, and are those of C++."""

from __future__ import annotations

import dataclasses
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.codegen.render import Instance, instance_name, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.families import FAMILIES, config_from, named
from onnxbolt.problems import (
    AttentionProblem,
    ConvProblem,
    GemmProblem,
    Problem,
)
from tests.codegen.compilation import compile_program
from tests.same_results import units

F16, F32 = DType.F16, DType.F32
STEPS = ((), ("Bias", "Relu"), ("Bias", "Add", "Relu"))
BEHIND = ("Gemm", "Bias", "Relu")
# code for Hopper on a part with less shared memory
SMALL = dataclasses.replace(
    get(90),
    name="small_90a",
    number=1090,
    shared_memory_per_block=163 * 1024,
    shared_memory_per_sm=164 * 1024,
)


def compiled(name: str) -> list[Instance]:
    """The instances of one family that same_results.json has."""
    unit = units()[name]
    columns = zip(unit["rows"], unit["types"], unit["chains"], strict=True)
    return [
        Instance(config_from(row), DType(element), DType(out), tuple(chain))
        for row, (element, out), chain in columns
    ]


def conv(n: int, h: int, c: int, k: int, r: int, stride: int, **fields: object) -> ConvProblem:
    """A convolution of square images and filters that keeps their size, but for the stride."""
    p, pads = (h - 1) // stride + 1, (r // 2,) * 4
    base = ConvProblem(
        n, h, h, c, k, r, r, p, p, pads, (stride, stride), (1, 1), 1, F16, F16, ("Bias", "Relu")
    )
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def problems() -> Iterator[Problem]:
    """Problems of all families, with residuals, stored results and both widths of results."""
    for out in (F16, F32):
        for steps in STEPS:
            yield from (
                GemmProblem(4096, n, k, F16, out, steps) for n, k in ((1024, 512), (40, 429))
            )
            yield conv(8, 56, 64, 64, 3, 1, out=out, chain=steps)
            yield conv(8, 14, 96, 200, 1, 1, out=out, chain=steps)
            layers = ("Bias", "Relu", *BEHIND)
            yield GemmProblem(4096, 64, 256, F16, out, (*steps, *BEHIND), (128,))
            yield conv(8, 56, 64, 256, 3, 1, out=out, chain=(*steps, *BEHIND), inner=(64,))
        yield GemmProblem(4096, 16, 12, F16, out, layers, (16,))
        yield GemmProblem(4096, 512, 256, F16, out, layers, (384,))
        yield GemmProblem(4096, 64, 64, F16, out, ("Bias", "Store", *BEHIND), (256,))
        yield conv(8, 224, 3, 64, 7, 2, out=out, nchw=True)
        yield conv(8, 224, 3, 64, 3, 2, out=out, nchw=True, chain=layers, inner=(32,))
        yield conv(8, 28, 64, 64, 1, 1, out=out, y_nchw=True)
    yield from attentions()


def attentions() -> Iterator[AttentionProblem]:
    """Few and many keys, heads of 40 and of 128 elements, masks, and a band."""
    plain = AttentionProblem(32, 4, 4, 197, 197, 64, 64, F16, F16)
    few, many = ({"queries": n, "keys": n} for n in (49, 2048))
    bias = {"mask": ("added", "f16"), "mask_shape": (1, 4, 49, 49)}
    kept = {"mask": ("kept",), "mask_shape": (32, 1, 1, 2048)}
    for change in ({}, {"size": 40, "value_size": 40}, {**few, **bias}, {**many, **kept}):
        yield dataclasses.replace(plain, **change)
    sizes = {"size": 128, "value_size": 96, "band": (-(2**31), 0, 0)}
    yield dataclasses.replace(plain, **many, **sizes)  # type: ignore[arg-type]


def instances(arch: Arch) -> list[Instance]:
    """Some instances of every problem and family."""
    chosen = random.Random(0)
    found: dict[Instance, None] = {}
    for problem in problems():
        for family in FAMILIES.values():
            if not isinstance(problem, family.problems) or not family.runs_on(arch):
                continue
            of_family = family.candidates(problem, arch)
            for config in chosen.sample(of_family, min(2, len(of_family))):
                found[Instance(config.instance(), problem.dtype, problem.out, problem.chain)] = None
    return list(found)


def printing(instance: Instance) -> str:
    """A statement that prints the kernel's bytes in C++."""
    text = render_unit([instance])
    start = text.index("onnxbolt::", text.index(f"using {instance_name(instance)} ="))
    return f'std::printf("%d\\n", int({text[start : text.index(";", start)]}::kSharedMemory));\n'


@pytest.mark.parametrize("name", sorted(units()))
def test_units_assert_the_numbers(name: str) -> None:
    for instance in compiled(name):
        number = named(name).shared_memory(instance)
        asserted = f"static_assert({instance_name(instance)}::kSharedMemory == {number},"
        # CUTLASS 3.x lays out its shared memory by itself
        assert (asserted in render_unit([instance])) == (name != "gemm_3x")


@pytest.mark.parametrize("name", sorted(units()))
def test_no_block_has_more_than_its_architecture(name: str) -> None:
    for instance in compiled(name):
        number = named(name).shared_memory(instance) or 0
        assert 0 <= number <= get(instance.config.arch).shared_memory_per_block


@pytest.mark.nvcc
@pytest.mark.timeout(1800)
def test_numbers_are_those_of_cpp(tmp_path: Path) -> None:
    ARCHS.add(SMALL, "parts")
    try:
        found = [i for arch in (get(75), get(80), get(90), SMALL) for i in instances(arch)]
        headers = "".join(f'#include "families/{f.name}/kernel.h"\n' for f in FAMILIES.values())
        text = "".join(map(printing, found))
        program = compile_program(
            tmp_path / "memory.cu", f"#include <cstdio>\n{headers}ARCHS\nint main() {{\n{text}}}\n"
        )
        expected = [instance.config.family.shared_memory(instance) for instance in found]
    finally:
        ARCHS.remove(SMALL)
    answers = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    pairs = zip(found, expected, map(int, answers.split()), strict=True)
    assert [pair for pair in pairs if pair[1] not in (None, pair[2])] == []
    families = {instance.config.family.name for instance in found}
    assert families >= {name for name in units() if "sm90" in name or "2x" in name}
