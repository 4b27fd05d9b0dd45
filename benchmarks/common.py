"""Parts that all benchmarks share: a row of a result file, the GPU's clock, and times on the
command line."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import gpu_index
from onnxbolt.errors import InputError
from onnxbolt.options import seconds


@dataclass(frozen=True)
class Row:
    """One comparison: times in microseconds, ratio = peer_us / ours_us.

    `spread` is ours, `error` ours against float32, relative L2; `values` holds whatever is no such
    pair. `values["estimated"]` names the part of the peer's time that was not measured as it
    stands: such a row enters no mean.
    """

    name: str
    batch: int
    dtype: str
    ours_us: float | None = None
    peer: str = ""
    peer_us: float | None = None
    ratio: float | None = None
    floor_us: float | None = None
    spread: float | None = None
    error: float | None = None
    clock_mhz: int | None = None
    config: str = ""
    values: dict[str, Any] = field(default_factory=dict)


class ClockSampler:
    """The GPU's SM clock in MHz while a `with` block runs; None if nvidia-smi is missing."""

    def __enter__(self) -> ClockSampler:
        self.mhz: int | None = None
        self._process: subprocess.Popen[str] | None = None
        command = [
            "nvidia-smi",
            "--query-gpu=clocks.sm",
            "--format=csv,noheader,nounits",
            f"--id={gpu_index()}",
            "--loop-ms=100",
        ]
        with contextlib.suppress(FileNotFoundError):  # no driver, no clock
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        read = [int(line) for line in self._process.communicate()[0].split() if line.isdigit()]
        self.mhz = round(statistics.median(read)) if read else None


def check_names(
    chosen: Iterable[str], known: Collection[str], parser: argparse.ArgumentParser
) -> None:
    """End the program with the parser's error if a chosen model is none of the known ones."""
    if unknown := set(chosen).difference(known):
        parser.error(f"no model {', '.join(sorted(unknown))}: choose from {', '.join(known)}")


def time_argument(text: str) -> float:
    """'5m' -> 300.0, for argparse."""
    try:
        return seconds(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
