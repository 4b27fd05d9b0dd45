"""Edits of source files by their text: where lines break, and how they are indented, does not
matter."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


def count(text: str, old: str) -> int:
    """How often `old` stands in `text`."""
    return len(_pattern(old).findall(text))


def replaced(text: str, old: str, new: str) -> str:
    """`text` with `new` in place of `old`. Raises ValueError where `old` does not stand in it
    once."""
    if (times := count(text, old)) != 1:
        raise ValueError(f"its text stands there {times} times: {old!r}")
    return _pattern(old).sub(lambda _: new, text)


def _pattern(old: str) -> re.Pattern[str]:
    """Matches the same words and signs, with any white space between them, and a comma or none
    before a bracket that closes."""
    parts, before = [], ""
    for token in _TOKEN.findall(old.strip()):
        if token.isspace():
            continue
        gap = r"\s*" if before else ""
        parts.append(f"{gap},?{gap}" if token in ")]}" and before != "," else gap)
        parts.append(re.escape(token))
        before = token
    edge = r"\b" if old.strip()[0].isalnum() else ""
    return re.compile(edge + "".join(parts))
