"""The keys of measurements: canonical JSON of the whole problem and of everything that can change
its time.

Another GPU, power limit or version makes another key: a miss, never an error. Databases and lock
files hold these texts, so a change of one byte loses what was measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from onnxbolt import checks
from onnxbolt.dtypes import DType
from onnxbolt.measurements.records import Machine
from onnxbolt.problems import ConvProblem, GemmProblem, SqueezeExciteProblem

Problem = ConvProblem | GemmProblem | SqueezeExciteProblem
_PROBLEMS: dict[str, Callable[..., Problem]] = {
    kind.__name__: kind for kind in (ConvProblem, GemmProblem, SqueezeExciteProblem)
}


def kernel_key(problem: Problem, machine: Machine) -> str:
    """The key of a kernel's time for `problem` on `machine`."""
    return canonical(
        {"kernel": plain(problem), "kind": type(problem).__name__, "machine": plain(machine)}
    )


def canonical(value: object) -> str:
    """JSON with sorted keys and nothing optional: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain(value: object) -> object:
    """A problem, a machine or a part of one as what JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, DType):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def problem_from(kind: str, fields: Mapping[str, Any]) -> Problem:
    """The inverse of `plain` for a problem, `kind` its type's name. Raises KeyError, ValueError
    or TypeError for anything else."""
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    types = {name: DType(values[name]) for name in ("dtype", "out")}
    return _PROBLEMS[kind](**{**values, **types})


def kernel_of_key(key: str) -> tuple[Problem, int] | None:
    """Problem and architecture of a `kernel_key`. None for other keys, and for those of other
    versions, whose problems have other fields: no problem of today has such a key."""
    try:
        values = checks.parsed_json(key)
        return problem_from(values["kind"], values["kernel"]), values["machine"]["arch"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
