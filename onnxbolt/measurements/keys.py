"""The keys of measurements: canonical JSON of the whole problem and of everything that can change
its time.

Another GPU, power limit or version makes another key: a miss, never an error. Databases and lock
files hold these texts, so a change of one byte loses what was measured.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from onnxbolt import checks, families
from onnxbolt.dtypes import DType
from onnxbolt.measurements.records import Machine
from onnxbolt.problems import Problem

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def kernel_key(problem: Problem, machine: Machine) -> str:
    """The key of a kernel's time for `problem` on `machine`."""
    return canonical(
        {"kernel": plain(problem), "kind": type(problem).__name__, "machine": plain(machine)}
    )


def canonical(value: object) -> str:
    """JSON with sorted keys and no optional spaces, so that equal values have equal texts."""
    return _CANONICAL.encode(value)


def plain(value: object) -> object:
    """A problem, a machine or a part of one as values of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, DType):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def machine_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The machine in a key's values, with the name of its GPU; empty where there is none."""
    machine = values.get("machine")
    if not isinstance(machine, dict) or not isinstance(machine.get("gpu"), str):
        return {}
    return dict(machine)


def problem_from(kind: str, fields: Mapping[str, Any]) -> Problem:
    """The problem whose class is `kind` and for which `plain` returns `fields`. Raises KeyError,
    ValueError or TypeError if there is none."""
    problem = families.problem_types().get(kind)
    if problem is None:
        raise ValueError(f"no kernel family solves a {kind}")
    return problem(**{name: _held(value, problem, name) for name, value in fields.items()})


def _held(value: Any, problem: type[Problem], name: str) -> Any:
    """A value of JSON as the field `name` of a problem holds it."""
    if field_types(problem)[name] is DType:
        return DType(value)
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def field_types(problem: type[Problem]) -> Mapping[str, Any]:
    """The types of the fields of a class of problems, by name."""
    types = get_type_hints(problem)
    return {field.name: types[field.name] for field in dataclasses.fields(problem)}


def kernel_of_key(key: str) -> tuple[Problem, int] | None:
    """The problem and architecture of a `kernel_key`; None for other keys, and for keys of other
    versions, whose problems have other fields."""
    try:
        values = checks.parsed_json(key)
        return problem_from(values["kind"], values["kernel"]), values["machine"]["arch"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
