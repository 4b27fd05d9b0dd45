"""Halo convolutions: tiles and their shared memory by the formulas of custom_ops/sm90/halo, which
problems have candidates, and which tiles."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxbolt import optimize
from onnxbolt.archs import ARCHS, get
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks import halo
from onnxbolt.families.halo_sm90 import HaloSm90Config
from onnxbolt.problems import ConvProblem
from tests.codegen.compilation import compile_program
from tests.support import Net

HOPPER = get(90)
FAMILY = named("halo_sm90")


def _problem(
    n: int,
    h: int,
    w: int,
    c: int,
    k: int,
    window: tuple[int, int] = (3, 3),
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    stride: int = 1,
    chain: tuple[str, ...] = ("Bias", "Relu"),
    out: DType = DType.F16,
) -> ConvProblem:
    (r, s), (top, left, bottom, right) = window, pads
    p, q = (h + top + bottom - r) // stride + 1, (w + left + right - s) // stride + 1
    return ConvProblem(
        n, h, w, c, k, r, s, p, q, pads, (stride, stride), (1, 1), 1, DType.F16, out, chain
    )


PROBLEMS = (
    _problem(32, 56, 56, 64, 64),
    _problem(32, 56, 56, 48, 48),
    _problem(32, 28, 28, 128, 128),
    _problem(32, 28, 28, 96, 96),
    _problem(32, 14, 14, 256, 256),
    _problem(32, 7, 7, 512, 512),
    _problem(8, 224, 224, 64, 64),
    _problem(1, 112, 112, 128, 128),
    _problem(32, 112, 112, 48, 48, stride=2),
    _problem(32, 28, 28, 256, 256, stride=2),
    _problem(1, 1, 1, 8, 8),
    _problem(2, 1, 300, 16, 24, (1, 7), (0, 3, 0, 3)),
    _problem(3, 300, 1, 24, 40, (5, 1), (2, 0, 2, 0)),
    _problem(4, 31, 29, 72, 136, (5, 5), (0, 2, 4, 1)),
    _problem(2, 40, 40, 32, 64, (7, 7), (3, 3, 3, 3), stride=2),
    _problem(32, 14, 14, 192, 192, chain=("Bias", "Add", "Relu")),
    _problem(2, 30, 30, 64, 64, chain=("Bias", "Add", "Mul"), out=DType.F32),
)


def test_whole_rows_share_their_padding() -> None:
    tile = halo.geometry(PROBLEMS[2], 28, 7, 1)
    assert (tile.row_pitch, tile.image_rows, tile.zero_pixels) == (29, 9, 1)
    assert tile.positions == 6 * 29 + 28
    assert tile.tiles == 4 * 32


def test_whole_images_share_their_padding() -> None:
    tile = halo.geometry(PROBLEMS[5], 7, 7, 4)
    # a row and a pixel of zeros behind the last image
    assert (tile.row_pitch, tile.image_rows, tile.zero_pixels) == (8, 8, 9)
    assert (tile.positions, tile.stage_pixels, tile.tiles) == (3 * 64 + 6 * 8 + 7, 272, 8)


def test_eight_columns_waste_no_position() -> None:
    tile = halo.geometry(PROBLEMS[0], 8, 28, 1)
    assert (tile.row_pitch, tile.group_pitch, tile.row_positions) == (10, 10, 8)
    assert tile.positions == 8 * 28
    assert tile.tiles == 7 * 2 * 32


def test_a_strided_tile_has_room_for_all_taps() -> None:
    tile = halo.geometry(PROBLEMS[8], 8, 28, 1)
    # one more than the outputs: taps 0 and 2 of a row
    assert (tile.row_pitch, tile.image_rows) == (9, 29)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_candidates_can_run(problem: ConvProblem) -> None:
    """Everything that C++ asserts at compile time, or checks at a launch."""
    found = FAMILY.candidates(problem, HOPPER)
    assert 1 <= len(found) <= 10
    assert len(set(found)) == len(found)
    for config in found:
        tile = halo.geometry(problem, *config.image_tile)
        assert config.family is FAMILY
        assert config.positions in halo.POSITIONS
        assert tile.positions <= config.positions
        assert tile.stage_pixels == config.stage_pixels
        assert max(tile.row_pitch, tile.image_rows) * problem.strides[0] <= 256
        assert config.channels == 64 * (
            config.consumers if config.schedule is Schedule.COOPERATIVE else 1
        )
        tensors = sum(step in ("Add", "Mul") for step in problem.chain)
        assert 2 <= config.stages <= 8
        assert (
            halo.shared_memory(config, tensors, 2, problem.out.bytes)
            <= HOPPER.shared_memory_per_block
        )
        stages = halo.filter_stages(config, tensors, 2, problem.out.bytes)
        filters = -(-problem.c // config.k_block) * problem.r * problem.s
        assert stages >= (filters if config.resident else 2)


@pytest.mark.parametrize(
    ("problem", "channels"),
    [(PROBLEMS[1], 48), (PROBLEMS[3], 96), (PROBLEMS[4], 256), (PROBLEMS[12], 32)],
    ids=str,
)
def test_k_blocks_waste_no_channels(problem: ConvProblem, channels: int) -> None:
    assert {-(-problem.c // c.k_block) * c.k_block for c in FAMILY.candidates(problem, HOPPER)} == {
        channels
    }


def test_an_image_of_any_height_has_the_tiles_of_a_high_one() -> None:
    """Without trying each of its rows, which took minutes."""
    high, highest = _problem(1, 2**12, 2**12, 64, 64), _problem(1, 2**28, 2**12, 64, 64)
    assert {(tile.columns, tile.rows) for tile in halo.tiles(highest)} == {
        (tile.columns, tile.rows) for tile in halo.tiles(high)
    }
    assert FAMILY.candidates(highest, HOPPER)


def test_a_tile_is_a_launch_choice() -> None:
    config = FAMILY.candidates(PROBLEMS[0], HOPPER)[0]
    assert config.instance() == dataclasses.replace(config, image_tile=(0, 0, 0))


@pytest.mark.parametrize(
    "change",
    [
        {"groups": 16},
        {"dilations": (2, 2)},
        {"strides": (1, 2)},
        {"strides": (3, 3)},
        {"c": 36},
        {"k": 36},
        {"r": 1, "s": 1},
        {"nchw": True},
        {"dtype": DType.F32},
        {"pads": (1, 1, 1, -1)},
    ],
    ids=str,
)
def test_problems_without_a_kernel(change: dict[str, Any]) -> None:
    assert FAMILY.candidates(dataclasses.replace(PROBLEMS[0], **change), HOPPER) == ()


def test_one_dimensional_convolutions_are_planned(tmp_path: Path) -> None:
    """The first layer of Whisper's encoder, whose largest batches this family computes."""
    net = Net({"x": ["N", 80, 3000]})
    filters = net.normal(768, 80, 3)
    y = net.node("Relu", net.node("Conv", "x", filters, pads=[1, 1]))
    y = net.node("Relu", net.node("Conv", y, net.normal(64, 768, 3)))
    out = tmp_path / "out.onnx"
    report = optimize(net.model(y), out, fuse="all", archs="sm_90a", verify=False, library=False)
    node = report.fused[0]
    assert node.op.endswith("_1d")
    assert any(FAMILY.name in config for config in node.configs)


def test_other_architectures_have_none() -> None:
    assert [arch.number for arch in ARCHS.values() if FAMILY.runs_on(arch)] == [90]


def test_more_work_takes_longer() -> None:
    config = FAMILY.candidates(PROBLEMS[0], HOPPER)[0]
    times = [
        halo.cycles(dataclasses.replace(PROBLEMS[0], n=n), config, HOPPER) for n in (8, 32, 128)
    ]
    assert times == sorted(times)
    assert times[0] < times[2]


# --- the same numbers in C++ ----------------------------------------------------------------------

_PROGRAM = """
#include <cstdio>
#include "sm90/halo/geometry.h"
using namespace onnxbolt;
int main() {
  int v[17];
  const auto read = [&] {
    for (int& number : v) {
      if (std::scanf("%d", &number) != 1) return false;
    }
    return true;
  };
  while (read()) {
    ConvArguments conv{v[0], v[1], v[2], 64, 64, v[3], v[4], v[5], v[6],
                       v[7], v[8], v[9], v[10], v[11], v[11], 1, 1, 1};
    const halo::Geometry tile = halo::FitGeometry(conv, v[12], v[13], v[14], v[15], v[16]);
    std::printf("%d %d %d %d %d %d %d %d %d\\n", tile.columns, tile.rows, tile.images,
                tile.row_pitch, tile.image_rows, tile.group_pitch, tile.row_positions,
                tile.zero_pixels, tile.column_blocks * tile.row_blocks * tile.image_blocks);
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C++'s FitGeometry as a filter of lines."""
    directory = tmp_path_factory.mktemp("halo")
    return compile_program(directory / "geometry.cu", _PROGRAM)


def _fitted(
    program: Path, cases: Sequence[tuple[ConvProblem, HaloSm90Config]]
) -> list[tuple[int, ...]]:
    lines = "\n".join(_line(problem, config) for problem, config in cases)
    answers = subprocess.run(
        [str(program)], input=lines, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [tuple(int(number) for number in answer.split()) for answer in answers]


CASES = [(problem, config) for problem in PROBLEMS for config in FAMILY.candidates(problem, HOPPER)]


def test_geometry_is_that_of_cpp(program: Path) -> None:
    assert _fitted(program, CASES) == [
        dataclasses.astuple(halo.geometry(problem, *config.image_tile)) for problem, config in CASES
    ]


@pytest.mark.parametrize(
    "change",
    [{"w": 50, "q": 50}, {"h": 40, "p": 40}, {"n": 1}, {"n": 100, "h": 9, "p": 9, "w": 9, "q": 9}],
    ids=str,
)
def test_other_images_get_tiles_that_fit(program: Path, change: dict[str, Any]) -> None:
    _assert_fits(
        program,
        [
            (dataclasses.replace(problem, **change), config)
            for problem, config in CASES
            if problem in PROBLEMS[2:6]
        ],
    )


def test_an_instance_by_itself_takes_what_fits(program: Path) -> None:
    _assert_fits(program, [(problem, config.instance()) for problem, config in CASES])


def _assert_fits(program: Path, cases: Sequence[tuple[ConvProblem, HaloSm90Config]]) -> None:
    for (problem, config), numbers in zip(cases, _fitted(program, cases), strict=True):
        columns, rows, images, *_ = numbers
        tile = halo.geometry(problem, columns, rows, images)
        assert dataclasses.astuple(tile) == numbers
        assert tile.positions <= config.positions
        assert tile.box_pixels + tile.zero_pixels <= config.stage_pixels


_MEMORY_PROGRAM = """
#include <cstdio>
#include "epilogue/chain.h"
#include "sm90/halo/block.h"
ARCHS
using namespace onnxbolt;
template <class Plan> void print() {
  std::printf("%d %d\\n", Plan::kSharedMemory, Plan::kFilterStages);
}
int main() {
  using Half = cutlass::half_t;
  using Plain = epilogue::Chain<epilogue::Bias, epilogue::Relu>;
  using Residual = epilogue::Chain<epilogue::Bias, epilogue::Add, epilogue::Relu>;
  PRINTS
}
"""


def test_shared_memory_is_that_of_cpp(tmp_path: Path) -> None:
    cases = [
        (config, chain, out)
        for problem in (PROBLEMS[0], PROBLEMS[3], PROBLEMS[4], PROBLEMS[8])
        for config in FAMILY.candidates(problem, HOPPER)[:4]
        for chain, out in (("Plain", 2), ("Residual", 2), ("Plain", 4))
    ]
    rows = {config: ", ".join(map(str, config.row())) for config, _, _ in cases}
    prints = "".join(
        f"  print<halo::Plan<Config<{rows[config]}>, Half, {'float' if out == 4 else 'Half'},"
        f" {chain}>>();\n"
        for config, chain, out in cases
    )
    program = compile_program(tmp_path / "memory.cu", _MEMORY_PROGRAM.replace("PRINTS", prints))
    answers = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for (config, chain, out), answer in zip(cases, answers, strict=True):
        tensors = int(chain == "Residual")
        expected = (
            halo.shared_memory(config, tensors, 2, out),
            halo.filter_stages(config, tensors, 2, out),
        )
        assert tuple(int(number) for number in answer.split()) == expected, config


def _line(problem: ConvProblem, config: HaloSm90Config) -> str:
    numbers = (
        problem.n,
        problem.h,
        problem.w,
        problem.r,
        problem.s,
        problem.p,
        problem.q,
        *problem.pads,
        problem.strides[0],
        *config.image_tile,
        config.positions,
        config.stage_pixels,
    )
    return " ".join(str(number) for number in numbers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kGroup", halo._GROUP),
        ("kMaxBox", halo._MAX_BOX),
        ("kChannels", halo.CHANNELS),
        ("kBarrierMemory", halo._BARRIERS),
        ("kMaxPositions", halo.POSITIONS[-1]),
        ("kMaxInputStages", halo._MAX_INPUT_STAGES),
        ("kMaxFilterStages", halo._MAX_FILTER_STAGES),
    ],
)
def test_constants_are_those_of_cpp(name: str, value: int) -> None:
    text = "".join(
        (resource_dir("custom_ops") / file).read_text()
        for file in ("sm90/halo/geometry.h", "sm90/halo/block.h")
    )
    found = re.search(rf"constexpr int {name} = (\d+);", text)
    assert found
    assert int(found[1]) == value
