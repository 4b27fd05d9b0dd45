"""Keys of measurements: everything that a time depends on is in them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
from typing import Any, cast

import onnx
import pytest

from onnxbolt.dtypes import DType
from onnxbolt.measurements.keys import kernel_key, plain, problem_from
from onnxbolt.measurements.records import Machine
from onnxbolt.problems import ConvProblem, GemmProblem, Problem, SqueezeExciteProblem
from onnxbolt.tune import baseline, whole

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
    """For a region, and for the whole model."""
    found = []
    for machine in (
        MACHINE,
        dataclasses.replace(MACHINE, **{field: _other(getattr(MACHINE, field))}),
    ):
        bench = types.SimpleNamespace(machine=machine, runtime={}, configs=lambda region: [])
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


def test_a_key_is_this_text_to_the_byte() -> None:
    """Databases hold these texts; another one for the same problem would lose its times."""
    assert kernel_key(GEMM, MACHINE) == (
        '{"kernel":{"chain":["Bias"],"dtype":"f16","inner":[],"k":16,"m":64,"n":32,"out":"f32"},'
        '"kind":"GemmProblem","machine":{"arch":90,"cuda":"13.0.88","cutlass":"4.2.0",'
        '"gpu":"NVIDIA H200","power_limit":700,"templates":"digest"}}'
    )


def test_a_problem_is_read_back_from_its_plain_form() -> None:
    for problem in (CONV, GEMM, GATE):
        fields = cast(dict[str, Any], plain(problem))
        assert problem_from(type(problem).__name__, fields) == problem


def test_planning_needs_no_tuner() -> None:
    """`plan` imports `measurements`, which imports neither `plan` nor `tune`."""
    code = """
import importlib, pkgutil, sys
import onnxbolt.{0} as package
for module in pkgutil.walk_packages(package.__path__, "onnxbolt.{0}."):
    importlib.import_module(module.name)
print([name for name in sys.modules if name.startswith({1})])
"""
    for package, others in (
        ("plan", ("onnxbolt.tune",)),
        ("measurements", ("onnxbolt.tune", "onnxbolt.plan")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(package, others)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "[]\n", package
