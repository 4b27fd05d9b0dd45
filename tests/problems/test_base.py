"""A class of problems of an extension, as stages see it: they ask it through `Problem` alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.extensions import Extension, register, unregister
from onnxbolt.families import Family, KernelConfig
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.plan.cost import floor_us, ort_us, predict, supports
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.problems import (
    ConvProblem,
    GemmProblem,
    PoolProblem,
    Problem,
    SqueezeExciteProblem,
    VolumePoolProblem,
)
from onnxbolt.problems.base import Computed
from onnxbolt.tune.soundness import check_problem
from onnxbolt.tune.tasks import tasks_of

F16, F32 = DType.F16, DType.F32
H200 = get(90)


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """y[m, n] = softmax(scale x[m, n]) along n."""

    operation = "softmax"
    least: ClassVar[dict[str, int]] = {"first": 0}

    m: int
    n: int
    first: int  # column
    scale: float
    inputs: DType
    dtype: DType
    out: DType
    exact: bool = False
    axes: tuple[int, int] = (1, 1)
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.m

    @property
    def columns(self) -> int:
        return self.n

    @property
    def bytes_moved(self) -> int:
        return self.m * self.n * (self.dtype.bytes + self.out.bytes)

    @property
    def shape(self) -> str:
        return f"softmax {self.m}x{self.n}"

    def onnxruntime_us(self, arch: Arch) -> float:
        return 2 * elementwise_us(self.bytes_moved, arch)


@dataclass(frozen=True, kw_only=True)
class RowsConfig(KernelConfig):
    """Nothing is to be chosen."""


class Rows(Family[RowsConfig]):
    """Takes twice what a copy takes."""

    number, name, config = 1001, "rows", RowsConfig
    problems = (SoftmaxProblem,)

    def candidates(self, problem: SoftmaxProblem, arch: Arch) -> tuple[RowsConfig, ...]:
        return (RowsConfig(arch=arch.number),)

    def predicted_us(self, problem: SoftmaxProblem, config: RowsConfig, arch: Arch) -> float:
        return 2 * floor_us(problem, arch)


EXTENSION = Extension(name="softmax", families=(Rows(),))
PROBLEM = SoftmaxProblem(4096, 1024, 0, 0.125, F32, F16, F32)
CONV = ConvProblem(
    2, 9, 8, 16, 32, 3, 3, 5, 4, (1, 1, 1, 1), (2, 2), (1, 1), 1, F16, F16, ("Bias", "Relu")
)
GEMM = GemmProblem(64, 32, 16, F16, F32, ("Bias",))
GATE = SqueezeExciteProblem(2, 14, 15, 64, 16, F16, F16, ("Relu", "Sigmoid"))
POOL = PoolProblem(2, 9, 8, 64, 5, 4, F16, F16)
VOLUME_POOL = VolumePoolProblem(2, (7, 9, 8), 64, (3, 5, 4), F16, F16)


@pytest.fixture
def extension() -> Iterator[None]:
    register(EXTENSION)
    yield
    unregister(EXTENSION)


@pytest.mark.usefixtures("extension")
def test_an_extensions_problem_is_planned() -> None:
    config, us = predict(PROBLEM, 90)
    assert (config, us) == (RowsConfig(arch=90), 2 * floor_us(PROBLEM, H200))
    assert floor_us(PROBLEM, H200) == pytest.approx(4096 * 1024 * 6 / H200.bandwidth * 1e6)
    assert us < ort_us(PROBLEM, H200)
    assert PROBLEM.description == "softmax 4096x1024, f16 to f32"
    assert KernelTimes([PROBLEM], 90, NOTHING).us(PROBLEM) == us


@pytest.mark.usefixtures("extension")
def test_what_the_profiler_cannot_check_is_no_task() -> None:
    (task,) = tasks_of([PROBLEM, GEMM], H200, trials=1)
    assert task.problem == GEMM


@pytest.mark.usefixtures("extension")
def test_files_hold_an_extensions_problem() -> None:
    text = json.dumps(plain(PROBLEM))
    found = problem_from("SoftmaxProblem", json.loads(text))
    assert found == PROBLEM
    check_problem(found, RowsConfig(arch=90))


def test_an_extensions_problem_is_unknown_without_it() -> None:
    assert not supports(PROBLEM, 90)
    with pytest.raises(ValueError, match="no kernel family solves a SoftmaxProblem"):
        problem_from("SoftmaxProblem", {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("m", 0),
        ("m", 2**63),
        ("m", True),
        ("n", 8.0),
        ("first", -1),
        ("scale", float("nan")),
        ("scale", "2"),
        ("inputs", "f16"),
        ("exact", 1),
        ("axes", (1,)),
        ("axes", [1, 1]),
        ("chain", ("Relux",)),
        ("chain", ("Gemm",)),
    ],
)
@pytest.mark.usefixtures("extension")
def test_unsound_fields_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="problem: (inner|" + field + ")"):
        check_problem(replace(PROBLEM, **{field: value}), RowsConfig(arch=90))


def test_two_classes_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class GemmProblem(SoftmaxProblem):
        """By another's name."""

    class OtherConfig(RowsConfig):
        """Its own, as each family's."""

    class Other(Rows):
        number, name, config = 1002, "other", OtherConfig
        problems = (GemmProblem,)

    with pytest.raises(InputError, match=r"other solves a GemmProblem, .* give the class another"):
        register(Extension(name="other", families=(Other(),)))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (GEMM, ("gemm 64x32x16, f16 to f32, Bias", 64, 32, 64 * 32 * 16 * 2)),
        (
            CONV,
            (
                "conv 2x9x8x16 to 32, 3x3, stride 2, f16, Bias+Relu",
                40,
                32,
                40 * 32 * 16 * 9 * 2,
            ),
        ),
        (
            replace(CONV, groups=16, k=16),
            ("depthwise conv 2x9x8x16 to 16, 3x3, stride 2, f16, Bias+Relu", 40, 16, 40 * 16 * 18),
        ),
        (
            replace(CONV, groups=4, dilations=(2, 1)),
            (
                "conv in 4 groups 2x9x8x16 to 32, 3x3, stride 2, dilation 2x1, f16, Bias+Relu",
                40,
                32,
                40 * 32 * 4 * 9 * 2,
            ),
        ),
        (
            replace(GEMM, chain=("Relu", "Gemm"), inner=(8,)),
            ("gemm 64x8-32x16, f16 to f32, Relu+Gemm", 64, 32, 64 * 2 * (8 * 16 + 32 * 8)),
        ),
        (
            GATE,
            (
                "squeeze-excite 2x14x15x64 by 16, f16, Relu+Sigmoid",
                420,
                64,
                2 * 420 * 64 + 4 * 2 * 16 * 64,
            ),
        ),
        (POOL, ("pool 2x9x8x64 to 5x4, f16", 40, 64, 0)),
        (VOLUME_POOL, ("pool 2x7x9x8x64 to 3x5x4, f16", 120, 64, 0)),
    ],
    ids=lambda value: value.description if isinstance(value, Problem) else "",
)
def test_description_and_sizes(problem: Problem, expected: tuple[Any, ...]) -> None:
    assert (problem.description, problem.rows, problem.columns, problem.flops) == expected


@pytest.mark.parametrize(
    ("problem", "elements"),
    [
        (GEMM, 64 * 16 + 32 * 16 + 2 * 64 * 32),  # y has 4 bytes
        (CONV, 2 * 9 * 8 * 16 + 32 * 9 * 16 + 40 * 32),
        (replace(CONV, chain=("Add",)), 2 * 9 * 8 * 16 + 32 * 9 * 16 + 2 * 40 * 32),
        (replace(CONV, chain=("Mean",)), 2 * 9 * 8 * 16 + 32 * 9 * 16 + 2 * 32),
        (replace(CONV, groups=4), 2 * 9 * 8 * 16 + 32 * 9 * 4 + 40 * 32),
        (GATE, 2 * 420 * 64),
        (POOL, 2 * 9 * 8 * 64 + 40 * 64),
        (VOLUME_POOL, 2 * 504 * 64 + 120 * 64),
    ],
    ids=lambda value: value.description if isinstance(value, Problem) else "",
)
def test_each_tensor_moves_once(problem: Problem, elements: int) -> None:
    assert problem.bytes_moved == 2 * elements


def test_only_products_have_a_reference() -> None:
    assert GATE.reference is POOL.reference is PROBLEM.reference is None
    gemm = replace(GEMM, chain=("Relu", "Gemm"), inner=(8,)).reference
    assert (gemm.computed, gemm.extents, gemm.columns, gemm.terms) == (
        Computed.GEMMS,
        (64, 8, 16),
        (32,),
        (16, 8),
    )
    conv = replace(CONV, chain=("Mean",)).reference
    assert conv.computed is Computed.CONVOLUTIONS
    assert conv.extents == (2, 9, 8, 16, 32, 3, 3, 5, 4, 1, 1, 1, 1, 2, 2, 1, 1, 1, 0, 0, 0)
    assert (conv.columns, conv.terms, conv.averaged_pixels) == ((), (9 * 16,), 20)


def test_forms_of_y() -> None:
    assert CONV.with_nchw_output(30) == replace(CONV, k=30, y_nchw=True)
    both = CONV.with_both_outputs(30, F32)
    assert both == replace(CONV, chain=("Bias", "Relu", "Store"), out=F32, y_nchw=True, padding=2)
    assert both is not None
    assert both.description.startswith("conv 2x9x8x16 to 32, 3x3, stride 2, to NHWC and NCHW of 30")
    stem, several = replace(CONV, nchw=True), replace(CONV, chain=("Gemm",), inner=(8,))
    for problem in (stem, several, GEMM, GATE):
        assert problem.with_nchw_output(30) is problem.with_both_outputs(30, F32) is None


def test_single_gemms_have_a_shape() -> None:
    assert GEMM.gemm_shape == (64, 32, 16)
    for problem in (replace(GEMM, chain=("Gemm",), inner=(8,)), CONV, GATE, PROBLEM):
        assert problem.gemm_shape is None
