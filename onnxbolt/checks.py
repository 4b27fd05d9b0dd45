"""Checks of values from outside, where they enter: of a model's metadata, a lock file, a database.

Every function returns its value, or raises ValueError, which names it. Templates and command lines
see nothing but values that passed here: names (`NAME`), numbers in their ranges, and entries of
tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

# an op type's name: an identifier in C++, safe in a file name
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,1023}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold these code points, and UTF-8 cannot
# characters of one text in a lock file or a database: a compiler's message, a key
LONGEST_TEXT = 100_000
_INFINITE = 1e300  # far above any measured value; larger integers would not fit a float
_SHOWN = 60  # characters of a refused value that its message repeats


def name(what: str, value: object) -> str:
    """An op type's name."""
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise ValueError(f"{what} {_shown(value)}: letters, digits and underscores are expected")
    return value


def text(what: str, value: object) -> str:
    """A text that is shown and compared, but never becomes part of a source or a command."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or _SURROGATE.search(value):
        raise ValueError(
            f"{what} {_shown(value)}: a text of at most {LONGEST_TEXT} characters is expected"
        )
    return value


def integer(what: str, value: object, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} {_shown(value)}: an integer from {least} to {most} is expected")
    return value


def number(what: str, value: object) -> float:
    """A time, a deviation or an error: finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _INFINITE:
        raise ValueError(
            f"{what} {_shown(value)}: a finite number that is not negative is expected"
        )
    return float(value)


def boolean(what: str, value: object) -> bool:
    """True or false; numbers are refused."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} {_shown(value)}: true or false is expected")
    return value


def entry(what: str, value: object, table: Collection[str]) -> str:
    """One of the words of `table`."""
    if not isinstance(value, str) or value not in table:
        raise ValueError(f"{what} {_shown(value)} is unknown to this version of onnxbolt")
    return value


def parsed_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for damaged text, and for text that is nested too
    deeply for the parser."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _shown(value: object) -> str:
    shown = ascii(value)  # no control character reaches a terminal
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}.."
