"""What all benchmarks share: facts of the machine, and the result file.

One JSON per benchmark and GPU, results/<benchmark>-<gpu>.json:
{"gpu", "driver", "versions", "commit", "command", "rows": [Row, ..]}; times in microseconds, ratio = peer_us / ours_us. A row that is
of another commit than the file says so in its values.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxbolt.errors import InputError
from onnxbolt.options import seconds

RESULTS = Path(__file__).with_name("results")
_PACKAGES = ("onnxbolt", "onnx", "onnxruntime", "onnxruntime-gpu", "nvidia-cutlass", "torch", "numpy")

@dataclass(frozen=True)
class Row:
    """One comparison. `spread` is ours, `error` ours against float32, relative L2; `values` holds whatever is no such pair."""

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
    """The GPU's SM clock while a `with` block runs, MHz; None where nvidia-smi is missing."""

    def __enter__(self) -> ClockSampler:
        self.mhz: int | None = None
        self._process: subprocess.Popen[str] | None = None
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "--id=0", "--loop-ms=100"]
        with contextlib.suppress(FileNotFoundError):  # no driver, no clock
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        read = [int(line) for line in self._process.communicate()[0].split() if line.isdigit()]
        self.mhz = round(statistics.median(read)) if read else None


def write_results(benchmark: str, rows: Sequence[Row], out: Path | None = None, append: bool = False) -> Path:
    """Write the result file, to `out` or to its place in results/, and return where; a half-written file is never left.

    `append` keeps the rows of an existing file that were not measured again: long benchmarks can run in parts.
    """
    path, commit = result_path(benchmark, out), _commit()
    document = {
        "gpu": gpu_name(),
        "driver": _query("driver_version"),
        "versions": _versions(),
        "commit": commit,
        "command": shlex.join(["python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]]),
        "rows": (_kept(path, rows, commit) if append else []) + [dataclasses.asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)
    return path


def result_path(benchmark: str, out: Path | None = None) -> Path:
    """`out`, or the benchmark's place in results/ for this GPU."""
    return out or RESULTS / f"{benchmark}-{gpu_name().lower().replace(' ', '-')}.json"


def _kept(path: Path, rows: Sequence[Row], commit: str) -> list[dict[str, Any]]:
    """What the file knows beside `rows`, each row with its commit where that is not `commit`."""
    if not path.exists():
        return []
    document, measured = json.loads(path.read_text()), {(row.name, row.batch, row.dtype) for row in rows}
    kept = [row for row in document["rows"] if (row["name"], row["batch"], row["dtype"]) not in measured]
    for row in kept:
        if document["commit"] != commit:
            row["values"].setdefault("commit", document["commit"])
    return kept


def time_argument(text: str) -> float:
    """'5m' -> 300.0, for argparse."""
    try:
        return seconds(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def gpu_name() -> str:
    """The GPU's name as nvidia-smi has it, or the processor's architecture where there is none."""
    return _query("name") or f"cpu {platform.machine()}"


def _query(what: str) -> str:
    try:
        command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader", "--id=0"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The checkout's commit, with -dirty where files differ from it; what ONNXBOLT_COMMIT says outside a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return os.environ.get("ONNXBOLT_COMMIT", "")
