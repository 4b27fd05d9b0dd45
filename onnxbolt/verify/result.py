"""What verification found, and how it reads."""
from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from rich.table import Table

from onnxbolt import tolerances
from onnxbolt.terminal import literal_console

NOT_FINITE = "infinities or NaNs differ"
SHOWN = 10  # fused nodes that the text lists beside those that failed


@dataclass(frozen=True)
class Row:
    """One tensor on one execution provider."""

    name: str  # of the tensor in the original model
    kind: str  # "output" or "fused node"
    provider: str  # "CPU" or "CUDA"
    error: float  # relative L2, of other types than floats the share of unequal values; NaN where the two could not be compared
    limit: float
    max_abs: float
    cosine: float
    passed: bool = False
    reason: str = ""  # why it failed
    node: str = ""  # the fused node

    def judged(self, yardstick: float = 0.0) -> Row:
        """The row with its verdict; `yardstick` is the error of the same tensor in the original itself, rounded."""
        limit = tolerances.limit(self.limit, yardstick)
        what = "share of unequal values" if math.isnan(self.max_abs) else "error"
        above = "" if self.error <= limit else f"{what} {self.error:.2e} is above the limit {limit:.2e}"
        reason = self.reason or above
        return dataclasses.replace(self, limit=limit, passed=not reason, reason=reason)


@dataclass(frozen=True)
class VerifyResult:
    """All rows; `notes` says what was not compared as it is."""

    precision: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing failed."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.passed)

    def summary(self) -> str:
        """One line per provider and kind: how many tensors, and the one nearest to its limit."""
        lines = []
        for provider, kind in dict.fromkeys((row.provider, row.kind) for row in self.rows):
            rows = [row for row in self.rows if (row.provider, row.kind) == (provider, kind)]
            worst = max(rows, key=_nearness)
            failed = sum(not row.passed for row in rows)
            state = f"{failed} of {len(rows)} failed" if failed else f"{len(rows)} within their limits"
            lines.append(f"{provider}, {kind}s: {state}; nearest: {worst.name} {worst.error:.2e} of {worst.limit:.2e}")
        return "\n".join(lines)

    def text(self, width: int = 160) -> str:
        """A table of outputs, failures and the fused nodes nearest to their limits; the last line is PASSED or FAILED."""
        table = Table("tensor", "kind", "on", "rel. L2", "limit", "max abs", "cosine", "", box=None, pad_edge=False)
        for row in self._shown():
            numbers = (f"{row.error:.2e}", f"{row.limit:.2e}", f"{row.max_abs:.2e}", f"{row.cosine:.6f}")
            table.add_row(row.name, row.kind, row.provider, *numbers, "ok" if row.passed else f"FAILED {row.reason}")
        console = literal_console(width)
        with console.capture() as captured:
            console.print(table)
            console.print("\n".join((self.summary(), *self.notes)))
            console.print("PASSED" if self.passed else "FAILED")
        return captured.get().rstrip()

    def _shown(self) -> list[Row]:
        fused = sorted((row for row in self.rows if row.kind != "output" and row.passed), key=_nearness, reverse=True)[:SHOWN]
        chosen = {id(row) for row in (*fused, *self.failures)}
        return [row for row in self.rows if row.kind == "output" or id(row) in chosen]


def _nearness(row: Row) -> float:
    """How much of its limit a tensor uses; failures first."""
    return float("inf") if not row.passed else row.error / row.limit if row.limit else 0.0
