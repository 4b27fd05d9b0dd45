"""Generated units compile without spilling: one instance of each family here, every candidate of
the planner with -m nvcc.

A family's code for the host is the same for all architectures, so that it is compiled for one of
them. Families that are compiled alone for one architecture share a unit for another.
tests/e2e/test_library.py has the families gemm_2x and conv_2x for sm_80, and pool for sm_80 and
sm_90a.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, Capability, get
from onnxbolt.codegen.artifacts import Unit, compile_each
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.errors import BuildError
from onnxbolt.families import candidates, named, only
from onnxbolt.families.b2b_conv_2x import B2bConv2xConfig
from onnxbolt.families.b2b_gemm_2x import B2bGemm2xConfig
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.depthwise import DepthwiseConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.problems import ConvProblem, GemmProblem
from tests.codegen.compilation import (
    DeviceToolchain,
    compile_all,
    joined,
    slow_code,
    units,
    watchful,
)

CHAIN = ("Bias", "Add", "Relu")
LAYERS = ("Bias", "Relu", PRODUCT, *CHAIN)


def _families(arch: int) -> list[Instance]:
    """One instance of each family of our own that all architectures have, but for poolings."""
    depthwise = DepthwiseConfig(arch=arch, rows=2, columns=4, filter=(5, 5, 1), access=4)
    return [
        Instance(only("elementwise", arch), DType.F16, DType.F16, CHAIN),
        Instance(depthwise, DType.F16, DType.F16, CHAIN),
        Instance(only("resize", arch), DType.F16, DType.F16, CHAIN),
        Instance(only("depth_to_space", arch), DType.F16, DType.F16, CHAIN),
        Instance(only("grid_sample", arch), DType.F16, DType.F16),
        Instance(only("squeeze_excite", arch), DType.F16, DType.F16, ("Silu", "Sigmoid")),
    ]


def _cutlass_2x(arch: int) -> list[Instance]:
    tile: dict[str, Any] = {
        "tile": (128, 64, 32),
        "warp": (64, 32, 32),
        "instruction": (16, 8, 16),
        "stages": 3,
        "swizzle": 1,
    }
    gemm_2x = Gemm2xConfig(arch=arch, **tile)
    conv_2x = Conv2xConfig(arch=arch, **tile, walk=Walk.OPTIMIZED)
    return [Instance(config, DType.F16, DType.F16, CHAIN) for config in (gemm_2x, conv_2x)]


def _cutlass_3x() -> Instance:
    config = Gemm3xConfig(
        arch=90, tile=(128, 128, 64), cluster=(2, 1), schedule=Schedule.COOPERATIVE
    )
    return Instance(config, DType.F16, DType.F16, CHAIN)


def _b2b(arch: int) -> dict[str, Any]:
    """Two layers with mma.sync."""
    return {
        "arch": arch,
        "rows": 64,
        "columns": 64,
        "depth": 32,
        "later": (32, 0, 0),
        "stages": 3 if get(arch).has(Capability.CP_ASYNC) else 2,
        "access_k": 8,
        "access_n": 8,
    }


def _b2b_gemm(arch: int) -> Instance:
    """The result of the first one in registers."""
    return Instance(B2bGemm2xConfig(**_b2b(arch), warp=(16, 64)), DType.F16, DType.F16, LAYERS)


def _b2b_conv(arch: int) -> Instance:
    """A convolution and a 1x1 one, the result of the first one in shared memory."""
    config = B2bConv2xConfig(**_b2b(arch), warp=(32, 32), walk=Walk.OPTIMIZED)
    return Instance(config, DType.F16, DType.F16, LAYERS)


WHOLE = [
    *units([_cutlass_3x()], 1),
    joined(_families(90)),
    joined([_b2b_conv(80), _b2b_gemm(80)]),
]
_BESIDE = {75: [_b2b_conv(75)], 80: _families(80), 90: _cutlass_2x(90)}
DEVICE = [
    joined([*_BESIDE.get(arch, ()), *([_b2b_gemm(arch)] if arch != 80 else [])]) for arch in ARCHS
]


@pytest.fixture(scope="module")
def compiled() -> dict[Unit, Path | BuildError]:
    """All of them, compiled on all cores."""
    return {
        **dict(compile_each(WHOLE, watchful())),
        **dict(compile_each(DEVICE, watchful(DeviceToolchain))),
    }


# a limit would measure how busy the machine is; compilers have one of processor time
@pytest.mark.timeout(0)
@pytest.mark.parametrize("unit", [*WHOLE, *DEVICE], ids=lambda unit: unit.name)
def test_each_family_compiles(unit: Unit, compiled: dict[Unit, Path | BuildError]) -> None:
    outcome = compiled[unit]
    assert isinstance(outcome, Path), outcome
    assert slow_code(outcome) == []


@pytest.mark.nvcc
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("number", ARCHS)
def test_every_candidate_compiles(number: int, dtype: DType) -> None:
    arch = get(number)
    wide: list[Instance] = []
    narrow: list[Instance] = []
    for width in (8, 4, 2, 1):
        problem = GemmProblem(512, 8 * width, 8 * width, dtype, dtype, CHAIN)
        image = ConvProblem(
            2,
            14,
            14,
            9 * width,
            9 * width,
            3,
            3,
            14,
            14,
            (1, 1, 1, 1),
            (1, 1),
            (1, 1),
            1,
            dtype,
            dtype,
            CHAIN,
        )
        first = dataclasses.replace(image, c=width)  # 4 or 8 channels have an iterator of their own
        configs = (
            *candidates(problem, arch),
            *candidates(image, arch),
            *candidates(first, arch),
        )
        (wide if width >= dtype.alignment else narrow).extend(
            Instance(config.instance(), dtype, dtype, CHAIN) for config in configs
        )
    _, complaints = compile_all(units(list(dict.fromkeys(wide)), 4), watchful())
    assert complaints == []
    # a few spilled registers are no matter beside narrow accesses
    compile_all(units(list(dict.fromkeys(narrow)), 4), watchful())


@pytest.mark.nvcc
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "number", [number for number, arch in ARCHS.items() if not arch.has(Capability.WGMMA)]
)
def test_every_candidate_for_several_products_compiles(number: int) -> None:
    """Results in registers and in shared memory, rows of any length."""
    layer = ("Bias", "GeluErf")
    shapes = (
        (256, (64, 16)),
        (429, (64, 16)),
        (576, (128, 64)),
        (64, (128, 256)),
        (256, (256, 64, 16)),
    )
    problems = [
        GemmProblem(
            512,
            widths[-1],
            k,
            DType.F16,
            DType.F16,
            (*(*layer, PRODUCT) * len(widths[:-1]), *layer),
            widths[:-1],
        )
        for k, widths in shapes
    ]
    found = [
        Instance(config.instance(), DType.F16, DType.F16, problem.chain)
        for problem in problems
        for config in named("b2b_gemm_2x").candidates(problem, get(number))
    ]
    _, complaints = compile_all(units(found, 4), watchful())
    assert complaints == []


@pytest.mark.nvcc
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("number", ARCHS)
def test_every_depthwise_candidate_compiles(number: int, dtype: DType) -> None:
    found: list[Instance] = []
    for r, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1)):
        strides, chain = (stride, stride), ("Bias", "HardSwish")
        problem = ConvProblem(
            2, 14, 14, 64, 64, r, r, 14, 14, (1, 1, 1, 1), strides, (1, 1), 64, dtype, dtype, chain
        )
        found += [
            Instance(config.instance(), dtype, dtype, problem.chain)
            for config in candidates(problem, get(number))
        ]
    _, complaints = compile_all(units(found, 8), watchful())
    assert complaints == []
