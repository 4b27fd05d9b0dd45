"""Options: one list of keywords for callers, checkers and help(); wrong values are named as the
caller wrote them."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxbolt import pipeline
from onnxbolt.errors import InputError
from onnxbolt.options import Choices, Options, check_comparison
from onnxbolt.spelling import flags, option


def test_keywords_are_the_fields_with_their_types() -> None:
    fields = typing.get_type_hints(Options)
    assert list(fields.items()) == list(typing.get_type_hints(Choices).items())


@pytest.mark.parametrize("function", [pipeline.optimize, pipeline.tune])
def test_help_lists_the_keywords(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    for field in dataclasses.fields(Options):
        assert parameters[field.name].default == field.default
        assert field.name in str(inspect.getdoc(Options))
        assert field.name in str(inspect.getdoc(function))
    assert not any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


@pytest.mark.parametrize("function", [pipeline.optimize, pipeline.tune])
def test_type_checkers_know_the_keywords(function: Callable[..., object]) -> None:
    assert function.__annotations__["choices"] == "Unpack[Choices]"


def test_options_without_tuning() -> None:
    asked = Options(tune=True, budget=5.0, target=1e-3, strategy="x", gpus=2, precision="keep")
    assert asked.untuned == Options(precision="keep")
    remote = Options(tune=True, min_speedup=1.0, scheduler="tcp://x:1", insecure=True)
    assert remote.untuned == Options()


def test_misspelt_keyword() -> None:
    with pytest.raises(TypeError, match="precison"):
        pipeline.optimize("model.onnx", precison="fp16")  # type: ignore[call-arg]


@pytest.mark.parametrize("given", ["sm_90a", ["sm_90a"], ("sm_90a",)])
def test_one_architecture(given: str | list[str]) -> None:
    assert Options(archs=given).archs == ("sm_90a",)


@pytest.mark.parametrize(
    ("choices", "argument", "flag"),
    [
        ({"precision": "fp8"}, "precision='fp8'", "--precision fp8"),
        ({"fuse": "some"}, "fuse='some'", "--fuse some"),
        ({"archs": "sm_91"}, "archs='sm_91'", "--arch sm_91"),
        ({"frozen": True}, "frozen=True needs lock,", "--frozen needs --lock,"),
        ({"frozen": True, "lock": "x", "tune": True}, "tune=True measures", "--tune measures"),
        ({"budget": 0.0}, "budget=0:", "--budget 0:"),
        ({"target": 0.0, "tune": True}, "target=0:", "--target 0:"),
        ({"target": 1e-3}, "needs tune=True", "needs --tune"),
        ({"target": 1e-3, "tune": True, "fuse": "all"}, "with fuse='all'", "with --fuse all"),
        ({"trials": 0}, "trials=0:", "--trials 0:"),
        ({"min_shapes": {"x": (0,)}}, "min_shapes:", "--min-shapes:"),
        ({"atol": -1.0}, "atol=-1:", "--atol -1:"),
        ({"seed": -1}, "seed=-1:", "--seed -1:"),
    ],
)
def test_errors_name_what_the_caller_wrote(choices: Choices, argument: str, flag: str) -> None:
    with pytest.raises(InputError) as from_python:
        Options(**choices)
    assert argument in str(from_python.value)
    assert "--" not in str(from_python.value)
    with flags(), pytest.raises(InputError) as from_command_line:
        Options(**choices)
    assert flag in str(from_command_line.value)


def test_spelling_ends_with_the_command_line() -> None:
    with flags():
        assert option("verify", False) == "--no-verify"
        assert option("keep_failed", True) == "--keep-failed"
        assert option("lock", Path("a.lock")) == "--lock a.lock"
    assert option("verify", False) == "verify=False"
    assert option("lock", Path("a.lock")) == "lock='a.lock'"


def test_comparison_needs_numbers() -> None:
    with pytest.raises(InputError, match="rtol=nan"):
        check_comparison(None, float("nan"), 0)
