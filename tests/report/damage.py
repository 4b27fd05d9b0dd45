"""Reports with one value that is missing, of another type, or out of range."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**63, 1e308, -1e308, 5e-324, "", "</script>", "x" * 5000),
    *([], [[]], {}, {"": None}, [0], [2**40], "\ud800", ["a", 1, None]),
)


def damaged(report: Any, seed: int) -> Any:
    """`report`, changed in place in one to three of its values."""
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        holder, key = draw.choice(list(_places(report)))
        action = draw.random()
        if action < 0.2 and isinstance(holder, dict):
            holder.pop(key, None)
        elif action < 0.3 and isinstance(holder, list):
            holder.append(holder[key])
        elif action < 0.4 and isinstance(holder, dict):
            holder[f"{key} too"] = holder[key]
        elif action < 0.9:
            holder[key] = draw.choice([v for v in VALUES if _like(v, holder[key])])
        else:
            holder[key] = draw.choice(VALUES)
    return report


def _like(value: Any, other: Any) -> bool:
    """True for values of one type; all numbers are of one."""
    numbers = (int, float)
    if isinstance(value, bool) or isinstance(other, bool) or other is None:
        return isinstance(value, bool) or value is None
    return isinstance(value, numbers) == isinstance(other, numbers) and (
        isinstance(value, numbers) or type(value) is type(other)
    )


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All values within a value, as (dict or list that holds it, key or index)."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    for key, inner in items:
        yield value, key
        yield from _places(inner)
