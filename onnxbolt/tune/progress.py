"""The progress of a tuning run: one line per task, as in AutoTVM, and one for the whole run.

    [Task  3/12] Current/Best:  512.0/ 640.0 TFLOP/s | 18/24 | 4.2 s | gemm 1280x3072x768, f16, Bias
    [Total] 120/288 | 84 s, about 40 s left

On a terminal lines are updated in place. Elsewhere each change prints a line or, with `--log-format
json`, a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_TOTAL_EVERY = 5.0  # seconds between plain lines for the whole
_SHOWN = 16  # task lines that fit a terminal; the last ones that changed


@dataclass(frozen=True)
class TaskLine:
    """One task's state. TFLOP/s are 0 until something has run; `planned` counts the candidates
    tried and those that still seem worth trying."""

    number: int
    of: int
    name: str
    current_tflops: float
    best_tflops: float
    tried: int
    planned: int
    seconds: float

    def __str__(self) -> str:
        width = len(str(self.of))
        return (
            f"[Task {self.number:{width}}/{self.of}] Current/Best:"
            f" {self.current_tflops:6.1f}/{self.best_tflops:6.1f} TFLOP/s |"
            f" {self.tried}/{self.planned} | {self.seconds:.1f} s | {self.name}"
        )


@dataclass(frozen=True)
class TotalLine:
    """The whole run. `seconds_left` is a forecast from the pace so far, at most the rest of the
    budget; None at the beginning."""

    tried: int
    planned: int
    seconds: float
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"[Total] {self.tried}/{self.planned} | {self.seconds:.0f} s{left}"


class Progress(Protocol):
    """Shows lines as they come; a context manager, so that it can restore the terminal."""

    def show(self, line: TaskLine | TotalLine) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, line: TaskLine | TotalLine) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class Plain(Silent):
    """A line of text for each change of a task, and one for the whole every few seconds."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock, self._last = write, clock, -_TOTAL_EVERY

    def show(self, line: TaskLine | TotalLine) -> None:
        if isinstance(line, TotalLine):
            if self._clock() - self._last < _TOTAL_EVERY:
                return
            self._last = self._clock()
        self._write(str(line))


class Json(Silent):
    """One JSON object per event."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def show(self, line: TaskLine | TotalLine) -> None:
        event = "task" if isinstance(line, TaskLine) else "total"
        self._write(json.dumps({"event": event, **asdict(line)}))


class Terminal(Silent):
    """Lines that are updated in place."""

    def __init__(self, console: Console) -> None:
        self._lines: dict[int, TaskLine] = {}
        self._total: TotalLine | None = None
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, line: TaskLine | TotalLine) -> None:
        if isinstance(line, TotalLine):
            self._total = line
        else:
            self._lines.pop(line.number, None)  # lines that changed last are shown
            self._lines[line.number] = line
        shown = sorted(list(self._lines.values())[-_SHOWN:], key=lambda task: task.number)
        lines = [*map(str, shown), *([str(self._total)] if self._total else [])]
        self._live.update(
            Group(*(Text(text, no_wrap=True, overflow="ellipsis") for text in lines)), refresh=True
        )


def reporter(log_format: str = "text", quiet: bool = False) -> Progress:
    """The way to show progress that suits standard error: a terminal, a file or JSON."""

    def write(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if quiet:
        return Silent()
    if log_format == "json":
        return Json(write)
    console = Console(stderr=True)
    return Terminal(console) if console.is_terminal else Plain(write)
