"""Kernels for several GEMMs with mma.sync: who has candidates, that they fit, shared memory as
C++ has it, and why others have none."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from onnxbolt.archs import ARCHS, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import candidates, named
from onnxbolt.families.blocks import b2b_mma
from onnxbolt.problems import GemmProblem
from tests.codegen.compilation import compile_program

OLDER = tuple(number for number, arch in ARCHS.items() if not arch.has(Capability.WGMMA))
FAMILY = named("b2b_gemm_2x")
LAYER = ("Bias", "Relu")


def _problem(k: int, *widths: int, dtype: DType = DType.F16) -> GemmProblem:
    return GemmProblem(
        16384,
        widths[-1],
        k,
        dtype,
        dtype,
        (*((*LAYER, PRODUCT) * (len(widths) - 1)), *LAYER),
        widths[:-1],
    )


NARROW = (
    _problem(256, 64, 16),
    _problem(96, 32, 96),
    _problem(13, 64, 16),
    _problem(64, 40, 24, 8),
    _problem(576, 128, 64),
)


@pytest.mark.parametrize("number", OLDER)
@pytest.mark.parametrize("problem", NARROW, ids=str)
def test_candidates_can_run(problem: GemmProblem, number: int) -> None:
    """Candidates meet the compile-time assertions of C++, and fit an SM."""
    arch = get(number)
    found = FAMILY.candidates(problem, arch)
    # in registers, and in shared memory
    assert {config.across == 1 for config in found} == {True, False}
    assert len(set(found)) == len(found)
    for config in found:
        rows, first, k = config.rows, config.columns, config.depth
        assert all(
            width <= n for width, n in zip((*problem.inner, problem.n), config.widths, strict=True)
        )
        assert all(n % (16 * config.across) == 0 for n in config.widths)
        assert rows % config.warp[0] == first % config.warp[1] == 0
        assert (
            rows * k % (8 * config.threads),
            first * k % (8 * config.threads),
        ) == (0, 0)
        assert b2b_mma.shared_memory(config, problem) <= arch.shared_memory_per_block
        assert b2b_mma.registers(config, problem) * config.threads <= arch.registers_per_sm
        assert config.instance() == config


def test_rows_of_odd_length_and_sm_75_take_two_stages() -> None:
    assert {config.stages for config in FAMILY.candidates(_problem(429, 64, 16), get(80))} == {2}
    assert {config.stages for config in FAMILY.candidates(_problem(256, 64, 16), get(75))} == {2}
    assert {config.stages for config in FAMILY.candidates(_problem(256, 64, 16), get(80))} == {
        3,
        4,
    }
    assert {config.access_k for config in FAMILY.candidates(_problem(30, 64, 16), get(80))} == {2}


def test_types_without_tensor_cores_residuals_inside_and_hopper_have_none() -> None:
    assert not FAMILY.candidates(_problem(64, 64, 64, dtype=DType.BF16), get(75))
    assert not FAMILY.candidates(_problem(64, 64, 64, dtype=DType.F32), get(80))
    assert not FAMILY.candidates(dataclasses.replace(NARROW[0], chain=("Add", PRODUCT)), get(80))
    assert not FAMILY.candidates(NARROW[0], get(90))


def test_gemm_offers_it_where_wgmma_is_not() -> None:
    for number in OLDER:
        assert {config.family for config in candidates(NARROW[0], get(number))} == {FAMILY}


def test_what_a_block_cannot_hold_is_said() -> None:
    assert FAMILY.shortage(NARROW[0], get(80)) is None
    assert FAMILY.shortage(_problem(256, 256, 64), get(80)) is None
    assert (
        FAMILY.shortage(_problem(256, 256, 64), get(75))
        == "a block needs 74 KB of shared memory, of which sm_75 has 64"
    )
    assert "sm_80 has 163" in str(FAMILY.shortage(_problem(256, 256, 256), get(80)))
    assert FAMILY.shortage(_problem(256, 512, 64), get(80)) == "a block has 256 columns at most"


_PROGRAM = """
#include <cstdio>
#include "families/b2b_gemm_2x/kernel.h"
ARCHS
using namespace onnxbolt;
using Layer = epilogue::Chain<epilogue::Bias, epilogue::Relu>;
int main() {
  using Half = cutlass::half_t;
PRINTS
}
"""


def test_shared_memory_is_that_of_cpp(tmp_path: Path) -> None:
    cases = [
        (problem, config)
        for problem in NARROW
        for config in FAMILY.candidates(problem, get(80))[::5]
    ]
    prints = "".join(
        '  std::printf("%d\\n", b2b_2x::Shape<b2b_2x::MatrixMainLoop,'
        f" Config<{', '.join(map(str, config.row()))}>, Half,"
        f" Half{', Layer' * (len(problem.inner) + 1)}>::kSharedMemory);\n"
        for problem, config in cases
    )
    program = compile_program(tmp_path / "memory.cu", _PROGRAM.replace("PRINTS", prints))
    answers = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [int(answer) for answer in answers] == [
        b2b_mma.shared_memory(config, problem) for problem, config in cases
    ]
