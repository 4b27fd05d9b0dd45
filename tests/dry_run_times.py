"""Processor time of `onnxbolt optimize --dry-run` over tests/zoo, of this checkout against another.

    git worktree add /tmp/before COMMIT
    python -m tests.dry_run_times /tmp/before [--only PATTERN]... [--runs N]

Each run is a process of its own; the two checkouts take turns, so that what else the machine does
meets both. The first run of each is left out, since it compiles Python's modules. The table has the
medians in seconds (user and system time of the process and its threads) and their ratio.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from tests.zoo.materialize import materialize

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "tests/zoo"
Times = Mapping[str, tuple[float, float]]  # by model: medians before and after, seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dry_run_times", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--only", action="append", help="a pattern of model names; all without")
    parser.add_argument("--runs", type=int, default=5, help="runs of each checkout (default 5)")
    chosen = parser.parse_args(arguments)
    names = [
        path.stem
        for path in sorted(ZOO.glob("*.onnx"))
        if any(fnmatch.fnmatch(path.stem, pattern) for pattern in chosen.only or ["*"])
    ]
    if not names:
        parser.error(f"no model of tests/zoo matches {' '.join(chosen.only)}")
    if not (chosen.before / "onnxbolt").is_dir():
        parser.error(f"{chosen.before} is no checkout: it has no folder onnxbolt")
    times = {}
    for name in names:
        times[name] = compare(name, (chosen.before.resolve(), ROOT), chosen.runs)
        print(f"{name}: {times[name][0]:.2f} s before, {times[name][1]:.2f} s after", flush=True)
    print(table(times))
    return 0


def compare(name: str, checkouts: tuple[Path, Path], runs: int) -> tuple[float, float]:
    """Median processor times of a dry run in each of two checkouts, seconds."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model.onnx"
        onnx.save(materialize(onnx.load(ZOO / f"{name}.onnx", load_external_data=False)), model)
        found = [[dry_run(model, checkout) for checkout in checkouts] for _ in range(runs + 1)]
    before, after = map(statistics.median, zip(*found[1:], strict=True))
    return before, after


def dry_run(model: Path, checkout: Path) -> float:
    """Processor time of one dry run in a process of its own, seconds.

    Raises CalledProcessError with what the process printed where it fails.
    """
    files = str(model), str(model.with_name("out.onnx"))
    command = [sys.executable, "-m", "onnxbolt", "optimize", *files, "--dry-run"]
    # modules that one run compiles are kept for the next
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}
    before = os.times()
    subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])  # user and system time of ended children


def table(times: Times) -> str:
    """Markdown, a row for each model and one for the geometric mean of the ratios."""
    ratios = [after / before for before, after in times.values()]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    rows = [
        f"| {name} | {before:.2f} | {after:.2f} | {after / before:.2f} |"
        for name, (before, after) in times.items()
    ]
    head = ["| model | before, s | after, s | after / before |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, f"| geometric mean | | | {mean:.2f} |"])


if __name__ == "__main__":
    sys.exit(main())
