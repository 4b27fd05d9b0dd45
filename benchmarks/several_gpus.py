"""The duration of tuning with one, two and four GPUs of one host.

    # resnet50, with an open batch and at batch 32; writes results/several_gpus-<gpu>.json
    python -m benchmarks.several_gpus
    # kernels alone, which needs no onnxruntime-gpu; with empty caches for 1 and 4 GPUs only
    python -m benchmarks.several_gpus bert_base --batch 32 --fuse all --cold 1 4
    # with the kernels that are compiled in DIR, whose database is emptied
    python -m benchmarks.several_gpus --cache DIR

At batch 32 ResNet-50 has 32 problems, and one GPU has measured them in seconds. With an open batch
it has 183, since it is tuned for batches from 1 to 64.

A model is tuned by the first number of --cold with an empty cache directory, and then by each
number of --gpus with all kernels compiled and an empty database; at last by the other numbers of
--cold, each with an empty directory. With --cache all of --cold comes last. Seconds are of the
whole call of `onnxbolt.tune`, in a process of its own; `measuring` is the part from its first
measurement to its last one, without planning and the start of CUDA. `us` is the model's time in the
kernels that a run chose: results may differ only by noise. With what the last run measured, one and
all GPUs tune once more: they have to measure nothing and to choose the same kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Row, time_argument
from benchmarks.documents import write_results
from benchmarks.racing import say
from benchmarks.tuning import Run, isolated, tune_model
from onnxbolt import gpu
from onnxbolt.options import Options
from onnxbolt.tune.database import default_path

MODELS = ("resnet50",)
OPEN, MOST = "open", 64  # an open batch, and the largest one that is tuned for by default
BATCHES = (OPEN, "32")
GPUS = (1, 2, 4)
COLD, COMPILED, AGAIN = "cold", "compiled", "again"


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    most, there = max((*chosen.gpus, *chosen.cold)), len(gpu.uuids())
    if gpu.local_arch() is None or there < most:
        print(f"error: {most} GPUs of a supported architecture are needed", file=sys.stderr)
        return 1
    rows: list[Row] = []
    for name, batch in itertools.product(chosen.models or MODELS, chosen.batch):
        values: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "fuse": chosen.fuse}
        if batch == OPEN:
            rows.append(Row(f"{name}, batches from 1", MOST, "fp16", values=values))
        else:
            rows.append(Row(name, int(batch), "fp16", values=values))
        for line in _survive(name, batch, chosen, values):
            write_results("several_gpus", rows, chosen.out, chosen.append)
            say(f"{rows[-1].name}: {line}")
    return 0


def _survive(
    name: str, batch: str, chosen: argparse.Namespace, values: dict[str, Any]
) -> Iterator[str]:
    """As `measured`; a failure is noted, and ends the model's runs."""
    try:
        with tempfile.TemporaryDirectory(prefix="onnxbolt-cold-") as scratch:
            yield from measured(name, batch, chosen, values, Path(scratch))
    except Exception as error:  # any failure: the other models are still to be measured
        values["failure"] = f"{type(error).__name__}: {error}"[:500]
        yield values["failure"]


def measured(
    name: str, batch: str, chosen: argparse.Namespace, values: dict[str, Any], scratch: Path
) -> Iterator[str]:
    """Add the results of one run after another to `values`, with a line for each."""
    end = time.monotonic() + chosen.within

    def tuned(count: int) -> Run:
        options = Options(tune=True, budget=chosen.budget, fuse=chosen.fuse, gpus=count)
        size = batch if batch == OPEN else int(batch)
        return isolated(tune_model, name, size, options)

    cold, first = [(COLD, count) for count in chosen.cold], 0 if chosen.cache else 1
    runs = [
        *cold[:first],
        *((COMPILED, count) for count in chosen.gpus),
        (AGAIN, max(chosen.gpus)),
        *cold[first:],
    ]
    if chosen.cache:
        os.environ["ONNXBOLT_CACHE_DIR"] = str(chosen.cache.resolve())
    for what, count in runs:
        if time.monotonic() >= end:
            yield f"no time for {what} {count}"
            continue
        if what == COLD:
            # for the processes to come
            os.environ["ONNXBOLT_CACHE_DIR"] = str(scratch / str(count))
        if what == COMPILED:
            _forget()
        if what == AGAIN:
            one, all_of_them = tuned(1), tuned(count)
            values[AGAIN] = {
                "measured": one.measured + all_of_them.measured,
                "same": one.tuning.tasks == all_of_them.tuning.tasks,
            }
            yield f"{what}: {values[AGAIN]}"
        else:
            found = facts(tuned(count))
            if what == COMPILED and found["compiled"]:
                _forget()
                found = facts(tuned(count))
            found["measuring"] = _measuring()
            values.setdefault(what, {})[str(count)] = found
            yield f"{what}, {count} GPUs: {found}"


def _forget() -> None:
    """Remove all measurements."""
    for path in default_path().parent.glob(f"{default_path().name}*"):
        path.unlink()


def _measuring() -> float:
    """Seconds from the first to the last measurement in the database."""
    with contextlib.closing(sqlite3.connect(default_path())) as database:
        times = "SELECT max(time_ns) - min(time_ns) FROM measurements"
        return round(float(database.execute(times).fetchone()[0]) / 1e9, 1)


def facts(run: Run) -> dict[str, Any]:
    """The values of a row about a run."""
    us = math.fsum(task.occurrences * task.best_us for task in run.tuning.tasks)
    return {
        "seconds": round(run.seconds, 1),
        "us": round(us, 1),
        "tasks": len(run.tuning.tasks),
        "trials": run.tuning.trials,
        "compiled": run.compiled,
        "ended_by": run.tuning.ended_by,
    }


def _batch(text: str) -> str:
    return text if text == OPEN else str(int(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument(
        "--batch", type=_batch, nargs="+", default=BATCHES, metavar="N", help=f"{OPEN} or numbers"
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS, metavar="N")
    parser.add_argument("--cold", type=int, nargs="*", default=GPUS, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="with compiled kernels")
    parser.add_argument("--fuse", default="winning", help="as that of onnxbolt optimize")
    parser.add_argument(
        "--budget", type=time_argument, metavar="TIME", help="of each run, e.g. 5m (default: none)"
    )
    parser.add_argument(
        "--within",
        type=time_argument,
        default=math.inf,
        metavar="TIME",
        help="for each job; no further run is begun then, e.g. 4m (default: all runs)",
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/several_gpus-<gpu>.json)"
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the result file's rows of other models"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
