"""Functions that follow a tensor back through the nodes that compute it end soon for any graph.

Such a function calls itself for the inputs of the tensor's node. Where both inputs of many nodes
come from one tensor, it would be called as often as there are paths, and a long chain of nodes
would exceed Python's stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
DEEPEST = 50  # calls within calls of one function; exporters' masks take about 20


def traced(beyond: Callable[..., Any]) -> Callable[[_F], _F]:
    """Decorate a recursive function of a tensor and hashable values: within an outermost call it
    runs once for each of its arguments, and beyond `DEEPEST` calls the answer is `beyond`'s."""

    def decorate(function: _F) -> _F:
        depth, known = 0, dict[Any, Any]()

        @functools.wraps(function)
        def call(tensor: Any, *others: Any) -> Any:
            nonlocal depth
            key = tensor.name, others  # a graph has one tensor of each name
            if key in known:
                return known[key]
            if depth == DEEPEST:
                return beyond(tensor, *others)
            depth += 1
            try:
                known[key] = result = function(tensor, *others)
            finally:
                depth -= 1
                if not depth:
                    known.clear()
            return result

        return cast(_F, call)

    return decorate


def unknown(*_: object) -> None:
    """The answer of functions that know nothing of a tensor."""
