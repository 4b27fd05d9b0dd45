"""Checks of lock files and of other machines' measurements, whose configurations end up in
models."""

from __future__ import annotations

import math
from typing import Any, get_args

from onnxbolt import checks
from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MAX_STEPS, PRODUCT
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import field_types, kernel_of_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan.cost import formula_us
from onnxbolt.problems import UNBOUNDED, Problem
from onnxbolt.registry import cached


def check_problem(problem: Problem, config: KernelConfig) -> None:
    """Raises ValueError for a problem that no model has, and for one that the configuration's
    family does not solve."""
    _check_fields(problem)
    if not isinstance(problem, config.family.problems):
        raise ValueError(f"kernels of {config.family.name} do not solve a {type(problem).__name__}")


def _check_fields(problem: Problem) -> None:
    """Raises ValueError for a problem that no model has."""
    for name, hint in field_types(type(problem)).items():
        value = getattr(problem, name)
        if not _is_sound(value, hint, problem.least.get(name, 1)):
            raise ValueError(f"problem: {name} is {value!r}")
    if len(problem.chain) > MAX_STEPS or not set(problem.chain) <= EPILOGUES.keys():
        raise ValueError(f"problem: chain is {problem.chain!r}")
    if len(problem.inner) != problem.chain.count(PRODUCT):
        raise ValueError("problem: inner needs the width of each layer but the last")


def check_choice(problem: Problem, arch: int, config: KernelConfig) -> None:
    """Raises ValueError for a problem that no model has, and for a configuration that no kernel for
    it and the architecture could have. It must serve all m: plans divide ranges among choices."""
    _check_fields(problem)
    _check_fit(problem, arch, config)


def _check_fit(problem: Problem, arch: int, config: KernelConfig) -> None:
    """`check_choice` for a problem that some model has."""
    if config.arch != arch:
        raise ValueError(f"a configuration of architecture {config.arch} for {arch}")
    if (config.min_m, config.max_m) != (0, UNBOUNDED):
        raise ValueError(f"a configuration for m from {config.min_m} to {config.max_m} alone")
    if not isinstance(problem, config.family.problems):
        raise ValueError(f"kernels of {config.family.name} do not solve a {type(problem).__name__}")
    formula_us(problem, config, get(config.arch))


def _is_sound(value: object, hint: Any, least: int) -> bool:
    """True if a field's value is of its type, and its integers are at least `least`."""
    if hint is int:
        return type(value) is int and least <= value < 2**63
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if hint in (bool, str, DType):
        return type(value) is hint
    first, *others = get_args(hint)  # the items of tuple[int, int] or tuple[int, ...]
    length = None if others == [...] else 1 + len(others)
    return (
        isinstance(value, tuple)
        and length in (None, len(value))
        and all(_is_sound(each, first, least) for each in value)
    )


def check_measurement(measurement: Measurement) -> None:
    """Raises ValueError for a problem that no model has, a configuration that no kernel for it
    could have, and for a time that none could take."""
    kernel = _kernel_of(measurement.key)
    if measurement.config is not None and kernel:
        _check_fit(*kernel, measurement.config)
    if measurement.status is Status.OK and not checks.number("us", measurement.us):
        raise ValueError("a measured time of 0")


@cached(maxsize=4096)  # by text, since a problem equals others of unsound types: 1 is True
def _kernel_of(key: str) -> tuple[Problem, int] | None:
    """The problem, which some model may have, and the architecture of a key."""
    kernel = kernel_of_key(key)
    if kernel:
        _check_fields(kernel[0])
    return kernel
