"""Reads reports that were written as JSON, and checks them against the published schema."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

from onnxbolt.errors import InputError
from onnxbolt.files import read_whole
from onnxbolt.report.data import FORMAT

SCHEMA = Path(__file__).with_name("schema.json")
_LARGEST = 2**28  # bytes
_AGAIN = "Write it again with this version: onnxbolt optimize --report x.json"


def read(path: Path) -> dict[str, Any]:
    """The report in a file. Raises InputError for a file that is none, or one of another format."""
    text = read_whole(path, _LARGEST)
    try:
        values = json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}). Write a report: onnxbolt optimize --report x.json"
        ) from error
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{path} is no report of format {FORMAT}, which onnxbolt reads, but"
            f" {'has no format' if found is None else f'of format {ascii(found)[:20]}'}. {_AGAIN}"
        )
    try:
        check(values, str(path))
    except InputError as error:
        raise InputError(f"{error}. {_AGAIN}") from error
    return values


def _number(text: str) -> float:
    """Raises ValueError for what Python reads, but JSON does not have: NaN, and infinities, as
    which numbers are read that are too large."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _integer(text: str) -> int:
    _number(text)
    return int(text)


def check(values: dict[str, Any], what: str) -> None:
    """Raises InputError for values that do not fit the schema or each other; `what` names them."""
    try:
        _validator()(values)
        _check_places(values)
    except (fastjsonschema.JsonSchemaValueException, ValueError) as error:
        raise InputError(f"{what} is not a report: {error}") from error


def _check_places(values: dict[str, Any]) -> None:
    """Raises ValueError where numbers that say how many there are, or where, are wrong."""
    archs = values["archs"]
    for side in filter(None, (values["before"], values["after"])):
        for place, block in enumerate(side["blocks"]):
            if any(read >= place for read in block["inputs"]):
                raise ValueError(f"node {place} reads a node behind it")
            if len(block["us"]) not in (0, len(archs)):
                raise ValueError(f"node {place} has times for other architectures")
    for region in values["regions"]:
        if len(region["comparisons"]) != len(region["archs"]):
            raise ValueError("a region has comparisons for other architectures")


@cache
def _validator() -> Any:
    return fastjsonschema.compile(json.loads(SCHEMA.read_text(encoding="utf-8")))
