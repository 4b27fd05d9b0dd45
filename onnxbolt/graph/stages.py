"""Stages before planning that are left out, and those that changed a graph: bisection runs the
pipeline with some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


def _none(name: str) -> bool:
    return False


@dataclass(frozen=True)
class Stages:
    """`leaves_out` tells by name which stages do not run; a pass of canonicalization counts as
    one. `changed` has those that changed something, in their order, in words."""

    leaves_out: Callable[[str], bool] = _none
    changed: dict[str, str] = field(default_factory=dict)

    def lines(self, name: str, words: str, run: Callable[[], list[str]]) -> list[str]:
        """The result of a stage, its lines for the report; empty if the stage is left out."""
        found = [] if self.leaves_out(name) else run()
        if found:
            self.changed.setdefault(name, words)
        return found
