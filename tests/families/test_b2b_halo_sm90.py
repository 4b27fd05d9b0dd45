"""Chains behind halo convolutions: who has candidates, that they fit, and shared memory by the
formula of custom_ops/sm90/halo."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks import halo
from onnxbolt.problems import ConvProblem
from tests.codegen.compilation import compile_program

HOPPER = get(90)
FAMILY = named("b2b_halo_sm90")
LAYER = ("Bias", "Relu")


def _problem(
    size: int,
    c: int,
    widths: tuple[int, ...],
    stride: int = 1,
    last: tuple[str, ...] = LAYER,
    out: DType = DType.F16,
) -> ConvProblem:
    p = (size - 1) // stride + 1
    chain = (*((*LAYER, PRODUCT) * (len(widths) - 1)), *last)
    return ConvProblem(
        32,
        size,
        size,
        c,
        widths[-1],
        3,
        3,
        p,
        p,
        (1, 1, 1, 1),
        (stride, stride),
        (1, 1),
        1,
        DType.F16,
        out,
        chain,
        inner=widths[:-1],
    )


RESIDUAL = ("Bias", "Add", "Relu")
PROBLEMS = (
    _problem(56, 64, (64, 64)),
    _problem(56, 48, (48, 48)),
    _problem(112, 64, (64, 64), 2),
    _problem(56, 64, (64, 256), last=RESIDUAL),
    _problem(28, 96, (96, 96)),
    _problem(28, 128, (128, 256), last=RESIDUAL),
    _problem(14, 16, (16, 16), out=DType.F32),
    _problem(56, 32, (64, 32, 72)),
    _problem(56, 24, (24, 128, 64)),
    _problem(1, 8, (8, 8)),
    _problem(7, 512, (64, 200), out=DType.F32),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_candidates_can_run(problem: ConvProblem) -> None:
    """Everything that C++ asserts at compile time, or checks at a launch."""
    found = FAMILY.candidates(problem, HOPPER)
    assert found
    assert len(set(found)) == len(found)
    for config in found:
        channels, positions = config.channels, config.positions
        assert config.family is FAMILY
        assert channels == halo.CHANNELS * (
            1 if config.schedule is Schedule.PINGPONG else config.consumers
        )
        assert max(problem.inner) <= channels
        assert all(
            width <= n for width, n in zip((*problem.inner, problem.k), config.layers, strict=True)
        )
        tile = halo.geometry(problem.layers[0], *config.image_tile)
        assert tile.positions <= positions <= (128 if config.consumers == 3 else 256)
        assert tile.stage_pixels <= config.stage_pixels
        assert config.stages * config.stage_pixels * halo.pixel_bytes(config, 2) % 1024 == 0
        tensors = sum(step == "Add" for step in problem.chain)
        assert (
            halo.shared_memory(config, tensors, 2, problem.out.bytes)
            <= HOPPER.shared_memory_per_block
        )
        assert halo.filter_stages(config, tensors, 2, problem.out.bytes) >= (
            9 * -(-problem.c // config.k_block) if config.resident else 2
        )


@pytest.mark.parametrize(
    "change",
    [
        {"inner": (136,)},
        {"k": 520},
        {"k": 60},
        {"inner": (60,)},
        {"c": 36},
        {"groups": 2},
        {"dilations": (2, 2)},
        {"dtype": DType.F32},
        {"r": 1, "s": 1},
        {"chain": (*RESIDUAL, PRODUCT, *LAYER)},
    ],
    ids=str,
)
def test_problems_without_a_kernel(change: dict[str, Any]) -> None:
    assert FAMILY.candidates(dataclasses.replace(PROBLEMS[0], **change), HOPPER) == ()


def test_four_layers_are_refused() -> None:
    assert FAMILY.candidates(_problem(56, 64, (64, 64, 64, 64)), HOPPER) == ()


def test_other_architectures_have_none() -> None:
    assert [arch.number for arch in ARCHS.values() if FAMILY.runs_on(arch)] == [90]


def test_what_exceeds_shared_memory_has_none() -> None:
    """128 KB of weights leave no room for filters, input and staging."""
    assert FAMILY.candidates(_problem(28, 128, (128, 512), last=RESIDUAL), HOPPER) == ()


_PROGRAM = """
#include <cstdio>
#include "families/b2b_halo_sm90/epilogue.h"
ARCHS
using namespace onnxbolt;
template <class Plan> void print() {
  std::printf("%d %d\\n", Plan::kSharedMemory, Plan::kFilterStages);
}
int main() {
  using Half = cutlass::half_t;
  using Inner = epilogue::Chain<epilogue::Bias, epilogue::Relu>;
  using Residual = epilogue::Chain<epilogue::Bias, epilogue::Add, epilogue::Relu>;
  PRINTS
}
"""


def test_shared_memory_is_that_of_cpp(tmp_path: Path) -> None:
    cases = [
        (problem, config)
        for problem in PROBLEMS
        for config in FAMILY.candidates(problem, HOPPER)[:3]
    ]
    prints = "".join(
        f"  print<{_plan(problem, ', '.join(map(str, config.row())))}>();\n"
        for problem, config in cases
    )
    program = compile_program(tmp_path / "memory.cu", _PROGRAM.replace("PRINTS", prints))
    answers = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for (problem, config), answer in zip(cases, answers, strict=True):
        operands = "Add" in problem.chain, 2, problem.out.bytes
        expected = halo.shared_memory(config, *operands), halo.filter_stages(config, *operands)
        assert tuple(int(number) for number in answer.split()) == expected, config


def _plan(problem: ConvProblem, row: str) -> str:
    out, last = (
        "float" if problem.out is DType.F32 else "Half",
        ("Residual" if "Add" in problem.chain else "Inner"),
    )
    return f"halo::ChainPlan<Config<{row}>, Half, {out}, {'Inner, ' * len(problem.inner)}{last}>"
