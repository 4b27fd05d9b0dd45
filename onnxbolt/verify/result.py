"""The result of verification, and its text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from onnxbolt import tolerances
from onnxbolt.graph.bodies import located
from onnxbolt.terminal import add_row, literal_console, one_line, width

WIDTH = 160  # columns of a text that is not written to a terminal
NOT_JUDGED = "PASSED by segment; whole model not judged (give --inputs)"
NOT_FINITE = "infinities or NaNs differ"
SHOWN = 10  # tensors inside the model that the text lists besides those that failed
# the meaning of a row's `error` at each level; levels in the order in which they are shown
LEVELS = {
    "segment": (
        "segments of the model, run on the original's tensors: the largest |y - y0| of an"
        " element, divided by its limit"
    ),
    "node": (
        "fused nodes against float64, run on the same inputs: the largest |y - y0| of an"
        " element, divided by its limit"
    ),
    "model": "the whole model: relative L2 error",
}
# the names of what a level compares
LEVEL_NAMES = {"segment": "segments", "node": "fused nodes", "model": "the whole model"}


def nearness(error: float | None, limit: float | None, passed: bool, unjudged: bool) -> float:
    """The share that a row's error is of its limit: at most 1 if the row passed, else more.

    It is infinite for a row that failed for another reason than the size of its error, such as NaNs
    in other places. It is 0 for a row without a verdict, and for one that passed without a share,
    since its limit is 0 or a number is not finite. Reports have None for such numbers.
    """
    if unjudged:
        return 0.0
    error, limit = (math.inf if number is None else number for number in (error, limit))
    share = error / limit if limit and math.isfinite(error) else math.inf
    if passed:
        return share if math.isfinite(share) else 0.0
    return share if share > 1.0 else math.inf


@dataclass(frozen=True)
class Row:
    """The comparison of one tensor on one execution provider."""

    name: str  # name of the tensor in the original model
    kind: str  # such as "output" or "fused node"
    provider: str  # "CPU" or "CUDA"
    # its meaning is in LEVELS; for types other than floats, the share of unequal values; NaN if
    # the two could not be compared
    error: float
    limit: float  # 1.0 if `error` is already divided by the limit
    max_abs: float
    cosine: float
    passed: bool = False
    reason: str = ""  # why it failed
    unjudged: str = ""  # why there is no verdict on these inputs: the row neither passed nor failed
    node: str = ""  # the fused node
    level: str = "model"  # one of LEVELS
    body: str = ""  # the body of control flow that it is in; empty for the main graph
    sizes: str = ""  # sizes of inputs with symbolic dimensions, such as "x:3x3x64x64"

    @property
    def where(self) -> str:
        """The provider, followed by the sizes if there are several."""
        return f"{self.provider}, {self.sizes}" if self.sizes else self.provider

    def judged(self, yardstick: float = 0.0, cap: float = math.inf) -> Row:
        """The row with its verdict. `yardstick` is the error of the same tensor in the original
        with rounding.

        A yardstick above `cap` leaves the row without a verdict, unless there is a fault that
        rounding does not explain. So do integers, of which rounding alone changes as many, and a
        shape (an infinite error) that it changes as well.
        """
        counted = math.isnan(self.max_abs)
        tolerated = tolerances.limit(self.limit, yardstick)
        chosen = counted and 0 < self.error <= tolerated
        if (yardstick > cap and not self.reason) or chosen:
            why = (
                "the original's shape"
                if math.isinf(yardstick)
                else f"{yardstick:.2e} of the original's values"
                if counted
                else f"the original by {yardstick:.2e}, more than the limit {cap:.0e}"
            )
            return dataclasses.replace(self, unjudged=f"rounding alone changes {why}", reason="")
        limit = self.limit if counted else tolerated
        what = "share of unequal values" if counted else "error"
        above = (
            "" if self.error <= limit else f"{what} {self.error:.2e} is above the limit {limit:.2e}"
        )
        reason = self.reason or above
        return dataclasses.replace(self, limit=limit, passed=not reason, reason=reason)

    @property
    def failed(self) -> bool:
        return not self.passed and not self.unjudged

    @property
    def nearness(self) -> float:
        """`nearness` of this row."""
        return nearness(self.error, self.limit, self.passed, bool(self.unjudged))

    @property
    def verdict(self) -> str:
        """The row's verdict as a word, for a table's last column."""
        return (
            "ok"
            if self.passed
            else f"not judged: {self.unjudged}"
            if self.unjudged
            else f"FAILED {self.reason}"
        )


@dataclass(frozen=True)
class VerifyResult:
    """All rows; `notes` says which of them were not compared in the usual way."""

    precision: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    ran: str = ""  # the optimized model ran on this, such as "kernels on NVIDIA H200"

    @property
    def passed(self) -> bool:
        """True if something was compared and nothing failed."""
        return bool(self.rows) and not self.failures

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)

    @property
    def judged(self) -> bool:
        """True if the inputs could judge every row."""
        return not self.unjudged

    @property
    def unjudged(self) -> tuple[Row, ...]:
        """The rows that these inputs could not judge."""
        return tuple(row for row in self.rows if row.unjudged)

    @property
    def verdict(self) -> str:
        """One line, which begins with PASSED or FAILED."""
        word = "FAILED" if not self.passed else "PASSED" if self.judged else self._passed_in_part()
        return f"{word}: {self.ran}" if self.ran else word

    def _passed_in_part(self) -> str:
        tensors = len(
            {(row.level, row.body, row.name) for row in self.unjudged if row.level != "model"}
        )
        if not tensors:
            return NOT_JUDGED
        what = (
            "in part; whole model and"
            if any(row.level == "model" for row in self.unjudged)
            else "as a whole;"
        )
        return (
            f"PASSED {what} {tensors} tensor{'s' if tensors > 1 else ''} not judged by segment or"
            " node (give --inputs)"
        )

    def at(self, level: str) -> tuple[Row, ...]:
        """The rows of one of LEVELS."""
        return tuple(row for row in self.rows if row.level == level)

    def summary(self, shown: Callable[[str], str] = one_line) -> str:
        """One line per provider, sizes, level and kind: how many tensors, and the one nearest to
        its limit. `shown` makes what is written of a model's names."""
        lines = []
        for where, level, kind in dict.fromkeys(
            (row.where, row.level, row.kind) for row in self.rows
        ):
            rows = [row for row in self.at(level) if (row.where, row.kind) == (where, kind)]
            worst = max(rows, key=lambda row: row.nearness)
            counts = {
                "failed": sum(row.failed for row in rows),
                "not judged": sum(bool(row.unjudged) for row in rows),
            }
            states = [f"{count} {what}" for what, count in counts.items() if count]
            state = (
                f"{' and '.join(states)} of {len(rows)}"
                if states
                else f"{len(rows)} within their limits"
            )
            lines.append(
                f"{shown(where)}, {kind}s: {state}; nearest:"
                f" {shown(located(worst.name, worst.body))} {worst.error:.2e} of {worst.limit:.2e}"
            )
        return "\n".join(lines)

    def text(self, columns: int | None = None) -> str:
        """A table for each level: all outputs, and of the inner tensors the failures and those
        nearest to their limits. The last line is the verdict."""
        console = literal_console(columns or width(WIDTH))
        with console.capture() as captured:
            for level, title in LEVELS.items():
                if shown := self._shown(level):
                    console.print(title)
                    console.print(_table(shown))
            console.print("\n".join((self.summary(), *self.notes, self.verdict)), soft_wrap=True)
        return captured.get().rstrip()

    def _shown(self, level: str) -> list[Row]:
        rows = self.at(level)
        if level == "model":
            return list(rows)
        passed = [place for place, row in enumerate(rows) if row.passed]
        nearest = sorted(passed, key=lambda place: rows[place].nearness, reverse=True)[:SHOWN]
        chosen = set(nearest)
        return [row for place, row in enumerate(rows) if not row.passed or place in chosen]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(
        "tensor", "kind", "on", "error", "limit", "max abs", "cosine", "", box=None, pad_edge=False
    )
    for row in rows:
        numbers = (
            f"{row.error:.2e}",
            f"{row.limit:.2e}",
            f"{row.max_abs:.2e}",
            f"{row.cosine:.6f}",
        )
        add_row(table, located(row.name, row.body), row.kind, row.where, *numbers, row.verdict)
    return table
