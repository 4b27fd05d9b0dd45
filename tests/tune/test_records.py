"""Keys of measurements: everything that a time depends on is in them."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, cast

import onnx
import pytest

from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem, GemmProblem, SqueezeExciteProblem
from onnxbolt.tune import baseline, whole
from onnxbolt.tune.records import Machine, Problem, kernel_key, wins

MACHINE = Machine("NVIDIA H200", 90, 700, "13.0.88", "4.2.0", "digest")
CONV = ConvProblem(
    2,
    14,
    15,
    16,
    24,
    3,
    5,
    14,
    17,
    (1, 2, 3, 4),
    (1, 2),
    (2, 1),
    1,
    DType.F16,
    DType.F32,
    ("Bias",),
)
GEMM = GemmProblem(64, 32, 16, DType.F16, DType.F32, ("Bias",))
GATE = SqueezeExciteProblem(2, 14, 15, 64, 16, DType.F16, DType.F16, ("Relu", "Sigmoid"))


def _other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, DType):
        return DType.BF16
    if isinstance(value, tuple):
        return (
            (*value[:-1], value[-1] + 1)
            if value and isinstance(value[-1], int)
            else (*value, "Relu")
            if value
            else (8,)
        )
    return (
        not value
        if isinstance(value, bool)
        else value + 1
        if isinstance(value, int)
        else value + "x"
    )


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_a_kernel_s_key_has_all_that_is_known_of_the_machine(field: str) -> None:
    other = dataclasses.replace(MACHINE, **{field: _other(getattr(MACHINE, field))})
    assert kernel_key(GEMM, other) != kernel_key(GEMM, MACHINE)


FIELDS = [
    (problem, field.name) for problem in (CONV, GEMM, GATE) for field in dataclasses.fields(problem)
]


@pytest.mark.parametrize(
    ("problem", "field"),
    FIELDS,
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_kernel_s_key_has_the_whole_problem(problem: Problem, field: str) -> None:
    other = dataclasses.replace(problem, **{field: _other(getattr(problem, field))})
    assert kernel_key(other, MACHINE) != kernel_key(problem, MACHINE)


SESSION = types.SimpleNamespace(
    key="region",
    key_of=lambda part: "part",
    original=onnx.ModelProto(),
    ranges=types.SimpleNamespace(opt=types.SimpleNamespace(shapes={})),
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_a_session_s_key_has_all_that_is_known_of_the_machine(field: str) -> None:
    """Of a region, and of the whole model."""
    found = []
    for machine in (
        MACHINE,
        dataclasses.replace(MACHINE, **{field: _other(getattr(MACHINE, field))}),
    ):
        bench = types.SimpleNamespace(machine=machine, configs=lambda region: [])
        race = types.SimpleNamespace(
            _bench=bench,
            _subject=types.SimpleNamespace(**vars(SESSION), precision="fp16"),
            _model="digest",
        )
        region = baseline.session_key(cast(Any, bench), cast(Any, SESSION), baseline.ORT)
        found.append((region, whole._Race._key(cast(Any, race), baseline.ORT)))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_pads_have_an_order() -> None:
    assert kernel_key(dataclasses.replace(CONV, pads=(1, 4, 3, 2)), MACHINE) != kernel_key(
        CONV, MACHINE
    )


@pytest.mark.parametrize(
    ("ours", "our_mad", "theirs", "their_mad", "won"),
    [
        (98.1, 0.0, 100.0, 0.0, False),
        (97.9, 0.0, 100.0, 0.0, True),  # 2% are noise whatever the samples say
        (90.0, 3.5, 100.0, 0.0, False),
        (90.0, 3.3, 100.0, 0.0, True),  # as are three deviations of ours
        (90.0, 0.0, 100.0, 3.5, False),
        (90.0, 0.0, 100.0, 3.3, True),  # or of theirs
        (110.0, 0.0, 100.0, 0.0, False),
    ],
)
def test_a_gain_has_to_exceed_the_noise(
    ours: float, our_mad: float, theirs: float, their_mad: float, won: bool
) -> None:
    assert wins(ours, our_mad, theirs, their_mad) is won
