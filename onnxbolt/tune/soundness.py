"""What lock files, and measurements from elsewhere, say of kernels, looked at before it is
believed: numbers that no kernel has would end up in models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from onnxbolt import checks
from onnxbolt.archs import get
from onnxbolt.epilogues import EPILOGUES, MAX_STEPS, PRODUCT
from onnxbolt.families import KernelConfig, config_from
from onnxbolt.measurements.keys import Problem, kernel_of_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan.cost import fused_us

_FROM_ZERO = ("pads", "padding")  # of a problem; all other numbers are at least 1


def check_problem(problem: Problem, config: KernelConfig) -> None:
    """Raises ValueError for a problem that no model has, and for one that the configuration's
    family does not solve."""
    for field in dataclasses.fields(problem):
        value, least = getattr(problem, field.name), 0 if field.name in _FROM_ZERO else 1
        numbers: Sequence[Any] = value if isinstance(value, tuple) else (value,)
        if field.name == "chain":
            sound = isinstance(value, tuple) and len(value) <= MAX_STEPS
            sound = sound and all(isinstance(step, str) and step in EPILOGUES for step in value)
        elif field.type == "bool":
            sound = type(value) is bool
        elif field.name in ("dtype", "out"):
            continue
        else:
            pairs = {"pads": 4, "strides": 2, "dilations": 2}.get(field.name)
            sound = isinstance(value, tuple) == (
                field.name == "inner" or pairs is not None
            ) and len(numbers) == (pairs or len(numbers))
            sound = sound and all(type(n) is int and least <= n < 2**63 for n in numbers)
        if not sound:
            raise ValueError(f"problem: {field.name} is {value!r}")
    if len(getattr(problem, "inner", ())) != problem.chain.count(PRODUCT):
        raise ValueError(
            "problem: inner has not one width for each product of the chain but the first"
        )
    if not isinstance(problem, config.family.problems):
        raise ValueError(f"a kernel of {config.family.name} for a {type(problem).__name__}")


def check_choice(problem: Problem, arch: int, config: KernelConfig) -> None:
    """Raises ValueError for a problem that no model has, and for a configuration that no kernel for
    it and the architecture could have."""
    if config.arch != arch:
        raise ValueError(f"a configuration of architecture {config.arch} for {arch}")
    check_problem(problem, config)
    fused_us(problem, config, get(config.arch))


def check_measurement(measurement: Measurement) -> None:
    """Raises ValueError for a configuration that no kernel could have, or none for its problem, and
    for a time that none could take."""
    if measurement.config is not None:
        config = config_from(measurement.config.row())
        if kernel := kernel_of_key(measurement.key):
            check_choice(*kernel, config)
    if measurement.status is Status.OK and not checks.number("us", measurement.us):
        raise ValueError("a measured time of 0")
