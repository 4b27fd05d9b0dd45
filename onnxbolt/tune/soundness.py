"""What lock files, and measurements from elsewhere, say of kernels, looked at before it is believed: numbers that no kernel has would end
up in models."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from onnxbolt.epilogues import EPILOGUES
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig, SqueezeExciteProblem
from onnxbolt.options import ARCHS, arch_number
from onnxbolt.tune.records import Measurement, Problem, Status

_LARGEST_TILE = 1024  # rows or columns of a block's tile; its depth is all of k where layers are chained
_MOST_WARPGROUPS = 8
_ALIGNMENTS = (1, 2, 4, 8, 16)
_FOR_CONV = frozenset(family for family in Family if any(word in family.name for word in ("CONV", "HALO", "FIRST", "DEPTHWISE")))
_FOR_GEMM = frozenset(family for family in Family if family.name.startswith(("GEMM", "CHAIN"))) - _FOR_CONV
_MMA_SYNC = (Family.GEMM_2X, Family.CONV_2X)
_FROM_ZERO = ("pads", "padding")  # of a problem; all other numbers are at least 1


def config_from(numbers: Any) -> KernelConfig:
    """The configuration of a row. Raises ValueError where it is none that a kernel could have."""
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n <= UNBOUNDED for n in numbers):
        raise ValueError(f"configuration {numbers!r}: integers from 0 to {UNBOUNDED} are expected")
    config = KernelConfig.from_row(numbers)
    for what, sound in _checks(config):
        if not sound:
            raise ValueError(f"configuration {numbers}: no kernel has such {what}")
    return config


def _checks(config: KernelConfig) -> Iterator[tuple[str, bool]]:
    """What is looked at, and whether it is sound."""
    yield "an architecture", config.arch in map(arch_number, ARCHS)
    yield "a range of m", config.min_m <= config.max_m
    yield "a tile", min(config.threadblock) > 0 and max(config.threadblock[:2]) <= _LARGEST_TILE
    yield "a warp tile", config.family not in _MMA_SYNC or all(
        warp > 0 and size % warp == 0 for size, warp in zip(config.threadblock, config.warp, strict=True))
    yield "a number of stages", config.stages <= 32
    yield "a cluster", all(1 <= size <= 16 for size in config.cluster)
    yield "an alignment", all(width in _ALIGNMENTS for width in (config.align_a, config.align_b, config.align_c))
    yield "launch", config.swizzle >= 1 and config.split_k >= 1
    yield "warpgroups", config.consumers <= _MOST_WARPGROUPS and config.resident <= 1


def check_problem(problem: Problem, config: KernelConfig) -> None:
    """Raises ValueError for a problem that no model has, and for one that the configuration's family does not solve."""
    for field in dataclasses.fields(problem):
        value, least = getattr(problem, field.name), 0 if field.name in _FROM_ZERO else 1
        numbers: Sequence[Any] = value if isinstance(value, tuple) else (value,)
        if field.name == "chain":
            sound = isinstance(value, tuple) and all(isinstance(step, str) and step in EPILOGUES for step in value)
        elif field.type == "bool":
            sound = type(value) is bool
        elif field.name in ("dtype", "out"):
            continue
        else:
            pairs = {"pads": 4, "strides": 2, "dilations": 2}.get(field.name)
            sound = isinstance(value, tuple) == (field.name == "inner" or pairs is not None) and len(numbers) == (pairs or len(numbers))
            sound = sound and all(type(n) is int and least <= n < 2**63 for n in numbers)
        if not sound:
            raise ValueError(f"problem: {field.name} is {value!r}")
    families = (Family.SQUEEZE_EXCITE,) if isinstance(problem, SqueezeExciteProblem) else (
        _FOR_CONV if isinstance(problem, ConvProblem) else _FOR_GEMM)
    if config.family not in (*families, *(_FOR_GEMM if isinstance(problem, ConvProblem) else ())):
        raise ValueError(f"a kernel of {config.family.name} for a {type(problem).__name__}")


def check_measurement(measurement: Measurement) -> None:
    """Raises ValueError for a configuration that no kernel could have, and for a time that none could take."""
    if measurement.config is not None:
        config_from(measurement.config.row())
    if measurement.status is Status.OK and not microseconds(measurement.us):
        raise ValueError("a measured time of 0")


def microseconds(value: Any) -> float:
    """A time, or its deviation. Raises ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)
