"""Generated units compile without spilling: one instance of each family here, every candidate of
the planner with -m nvcc.

A family's code for the host is the same for all architectures, so that it is compiled for one of
them. tests/e2e/test_library.py has the families GEMM_2X and CONV_2X for sm_80, and POOL for sm_80
and sm_90a.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.codegen.artifacts import Unit, compile_each
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.errors import BuildError
from onnxbolt.kernels import conv, elementwise, gemm, resize, squeeze_excite
from onnxbolt.kernels.config import (
    UNBOUNDED,
    ConvProblem,
    Family,
    GemmProblem,
    Iterator,
    KernelConfig,
    Schedule,
)
from tests.codegen.compilation import DeviceToolchain, compile_all, slow_code, units, watchful

CHAIN = ("Bias", "Add", "Relu")


def _families(arch: int) -> list[Instance]:
    """One instance of each family of our own that all architectures have, but for poolings."""
    depthwise = KernelConfig(
        arch,
        0,
        UNBOUNDED,
        Family.DEPTHWISE,
        (2, 4, 128),
        (5, 5, 1),
        align_a=4,
        align_b=4,
        align_c=4,
    )
    return [
        Instance(elementwise.config(arch), DType.F16, DType.F16, CHAIN),
        Instance(depthwise, DType.F16, DType.F16, CHAIN),
        Instance(resize.config(arch), DType.F16, DType.F16),
        Instance(squeeze_excite.config(arch), DType.F16, DType.F16, ("Silu", "Sigmoid")),
    ]


def _cutlass_2x(arch: int) -> list[Instance]:
    tile = ((128, 64, 32), (64, 32, 32), (16, 8, 16), 3)
    gemm_2x = KernelConfig(arch, 0, UNBOUNDED, Family.GEMM_2X, *tile)
    conv_2x = KernelConfig(arch, 0, UNBOUNDED, Family.CONV_2X, *tile, iterator=Iterator.OPTIMIZED)
    return [Instance(config, DType.F16, DType.F16, CHAIN) for config in (gemm_2x, conv_2x)]


def _cutlass_3x() -> Instance:
    config = KernelConfig(
        90,
        0,
        UNBOUNDED,
        Family.GEMM_3X,
        (128, 128, 64),
        cluster=(2, 1),
        schedule=Schedule.COOPERATIVE,
    )
    return Instance(config, DType.F16, DType.F16, CHAIN)


def _chain(arch: int) -> Instance:
    """Two layers with mma.sync, the result of the first one in registers."""
    stages = 3 if get(arch).cp_async else 2
    config = KernelConfig(
        arch, 0, UNBOUNDED, Family.B2B_GEMM_2X, (64, 64, 32), (32, 0, 0), (16, 64, 0), stages
    )
    return Instance(config, DType.F16, DType.F16, ("Bias", "Relu", PRODUCT, *CHAIN))


def _conv_chain(arch: int) -> Instance:
    """The same of a convolution and a 1x1 one, the result of the first one in shared memory."""
    alone = _chain(arch)
    config = dataclasses.replace(
        alone.config,
        family=Family.B2B_CONV_2X,
        instruction=(32, 32, 0),
        iterator=Iterator.OPTIMIZED,
    )
    return dataclasses.replace(alone, config=config)


WHOLE = units([*_families(90), _cutlass_3x(), _chain(80), _conv_chain(80)], 1)
DEVICE = units(
    [
        *_cutlass_2x(90),
        *_families(80),
        *(_chain(arch) for arch in ARCHS if arch != 80),
        _conv_chain(75),
    ],
    1,
)


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
            *gemm.candidates(problem, arch),
            *conv.candidates(image, arch),
            *conv.candidates(first, arch),
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
@pytest.mark.parametrize("number", [number for number, arch in ARCHS.items() if not arch.wgmma])
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
        for config in gemm.candidates(problem, get(number))
        if config.family is Family.B2B_GEMM_2X
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
            for config in conv.candidates(problem, get(number))
        ]
    _, complaints = compile_all(units(found, 8), watchful())
    assert complaints == []
