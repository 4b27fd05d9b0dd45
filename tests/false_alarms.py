"""Every graph of tests/zoo and every model of models/, optimized in each precision and verified
with several seeds: nothing may fail.

    python -m tests.false_alarms [--only PATTERN] [--precision P] [--seeds N] [--jobs N]
                                 [--minutes M] [--into PATH] [--keep-old]

Results go to tests/false_alarms.json as they come, one entry per model, precision and seed, with a
digest of the code that made it. What the file has of this code is not run again, so that the table
can be made in parts; with --keep-old entries of other code count as well. Each model in one
precision is a process of its own; those that took longest before come first. With a GPU kernels are
compiled and verified, else (or with CUDA_VISIBLE_DEVICES set to nothing) function bodies. The exit
code is 1 where a verdict is not PASSED or a run is missing.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import hashlib
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnx import ModelProto

import models
from onnxbolt import optimize
from onnxbolt.gpu import local_arch
from onnxbolt.verify import VerifyResult, verify
from tests.zoo.materialize import materialize

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".json")
PRECISIONS = ("fp16", "bf16", "keep")
Table = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """The work of one process: a model in one precision, with the seeds that the table lacks."""

    name: str
    precision: str
    seeds: tuple[int, ...]

    def key(self, seed: int) -> str:
        """The table's name of a run."""
        return f"{self.name} {self.precision} {seed}"


def sources() -> dict[str, Callable[[], ModelProto]]:
    """The function that builds each model, by name."""

    def stored(path: Path) -> ModelProto:
        return materialize(onnx.load(path, load_external_data=False))

    graphs = sorted((ROOT / "tests/zoo").glob("*.onnx"))
    found: dict[str, Callable[[], ModelProto]] = {}
    found |= {f"zoo/{path.stem}": functools.partial(stored, path) for path in graphs}
    return found | {
        f"models/{name}": functools.partial(models.build, name, batch=1) for name in models.NAMES
    }


def code() -> str:
    """A digest of all that optimizes and verifies."""
    digest = hashlib.sha256()
    for folder in ("onnxbolt", "custom_ops", "templates"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(
                    path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes()
                )
    return digest.hexdigest()[:12]


def entry(result: VerifyResult, seconds: float) -> dict[str, Any]:
    """An entry of the table: the verdict, the processor time of verification, the share of its
    limit that the nearest tensor of each level takes, and the rows that did not pass."""
    nearest = {}
    for level in ("segment", "node", "model"):
        parts = [row.error / row.limit for row in result.at(level) if row.limit]
        nearest[level] = {
            "tensors": len(result.at(level)),
            "nearest": round(max(parts, default=0.0), 3),
        }
    failures = [
        f"{row.level} {row.name}, {row.where}: {row.verdict}"
        for row in result.rows
        if not row.passed
    ]
    return {
        "verdict": result.verdict,
        "seconds": round(seconds, 1),
        **nearest,
        "failures": failures,
    }


def tasks(
    table: Table, names: Iterable[str], precisions: Iterable[str], seeds: int, digest: str | None
) -> list[Task]:
    """All that `table` lacks, the longest first, as entries of any code have it. Entries count
    whose code is `digest` (None: all)."""

    def has(key: str) -> bool:
        return key in table and digest in (None, table[key]["code"])

    wanted = [
        Task(name, precision, tuple(range(seeds))) for name in names for precision in precisions
    ]
    lacking = [
        Task(
            task.name, task.precision, tuple(seed for seed in task.seeds if not has(task.key(seed)))
        )
        for task in wanted
    ]
    return sorted((task for task in lacking if task.seeds), key=lambda task: -_seconds(table, task))


def _seconds(table: Table, task: Task) -> float:
    """How long a run of this model took, in any precision where not in this one; infinite where
    none is known."""
    known = {
        key: float(found["seconds"])
        for key, found in table.items()
        if key.startswith(f"{task.name} ")
    }
    own = [
        seconds
        for key, seconds in known.items()
        if key.startswith(f"{task.name} {task.precision} ")
    ]
    return max(own or known.values(), default=math.inf)


def work(task: Task, digest: str, threads: int, until: float, results: Connection) -> None:
    """Optimize the task's model once, verify it with each seed, and send key and entry of each
    run. `until` is of time.time()."""
    limit_threads(threads)
    source = sources()[task.name]()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.onnx"
        optimize(
            source,
            out,
            precision=task.precision,
            fuse="all",
            library=local_arch() is not None,
            verify=False,
        )
        for seed in task.seeds:
            if time.time() < until:
                start = time.process_time()
                result = verify(source, out, seed=seed)
                results.send(
                    (task.key(seed), {"code": digest, **entry(result, time.process_time() - start)})
                )


def share_cores(jobs: int) -> int:
    """The number of threads of each of `jobs` processes that share the cores. numpy reads it from
    the environment when a process starts, and multiplies with a thread for each core otherwise,
    which spin."""
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    return threads


def limit_threads(count: int) -> None:
    """Let each session of this process have `count` threads: ONNX Runtime starts one per core,
    which spin."""

    class Options(ort.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = count

    ort.SessionOptions = Options


def run(
    todo: Sequence[Task],
    jobs: int,
    until: float,
    start: Callable[[Task, Connection], multiprocessing.process.BaseProcess],
    save: Callable[[str, dict[str, Any]], None],
) -> None:
    """`start` a process for each task, `jobs` at a time and none after `until` (of time.time());
    `save` each result as it comes."""
    left, running = list(todo), dict[Connection, tuple[Task, multiprocessing.process.BaseProcess]]()
    while running or (left and time.time() < until):
        while left and len(running) < jobs and time.time() < until:
            receiving, sending = multiprocessing.Pipe(duplex=False)
            running[receiving] = (left[0], start(left.pop(0), sending))
            sending.close()  # the process holds the other copy: the pipe ends when it does
        for results in wait(list(running)):
            assert isinstance(results, Connection)
            try:
                save(*results.recv())
            except EOFError:
                task, process = running.pop(results)
                process.join()
                if process.exitcode:
                    print(
                        f"{task.name} {task.precision}: the process ended with {process.exitcode}",
                        flush=True,
                    )


def summary(table: Table, wanted: Iterable[Task], digest: str | None) -> tuple[str, bool]:
    """The last line, and whether all runs are there and passed."""
    keys = [task.key(seed) for task in wanted for seed in task.seeds]
    found = [table[key] for key in keys if key in table and digest in (None, table[key]["code"])]
    verdicts = Counter(str(one["verdict"]).partition(":")[0] for one in found)
    counts = "".join(f", {count} {verdict}" for verdict, count in verdicts.most_common())
    missing = len(keys) - len(found)
    return f"{len(found)} runs{counts}; {missing} missing", verdicts["PASSED"] == len(keys)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names of models, such as 'zoo/resnet50.*'"
    )
    parser.add_argument(
        "--precision", action="append", choices=PRECISIONS, help="this one alone; may be repeated"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="processes side by side, which share the cores",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, metavar="M", help="nothing is begun after these"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=TABLE,
        metavar="PATH",
        help="the table's file (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-old", action="store_true", help="do not run again what other code has run"
    )
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    # not killed at once: the processes end with this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    until, digest = time.time() + 60 * options.minutes, code()
    threads = share_cores(options.jobs)
    table: Table = json.loads(options.into.read_text()) if options.into.exists() else {}
    counted = None if options.keep_old else digest
    names = [name for name in sources() if fnmatch.fnmatch(name, options.only)]

    def start(task: Task, results: Connection) -> multiprocessing.process.BaseProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=work, args=(task, digest, threads, until, results), daemon=True
        )
        process.start()
        return process

    def save(key: str, found: Mapping[str, Any]) -> None:
        table[key] = dict(found)
        new = options.into.with_suffix(".new")
        new.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        new.replace(options.into)
        print(key, found["verdict"], *found["failures"], sep="\n  ", flush=True)

    precisions = options.precision or PRECISIONS
    run(tasks(table, names, precisions, options.seeds, counted), options.jobs, until, start, save)
    line, passed = summary(table, tasks({}, names, precisions, options.seeds, None), counted)
    print(line)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
