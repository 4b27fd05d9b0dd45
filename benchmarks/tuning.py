"""The duration of tuning: models with empty caches, and once more with the caches that this fills.

    # all of MODELS at batch 32; writes results/tuning-<gpu>.json
    python -m benchmarks.tuning
    # exports of benchmarks/transformers.py, whose names have their batch
    python -m benchmarks.tuning vit_base-32 bert_base-32x40 --append
    # in parts; DIR gets everything that is compiled and measured
    python -m benchmarks.tuning resnet50 --append --cache DIR
    # also the model's library: from the tuner's objects, and compiled anew
    python -m benchmarks.tuning --libraries

Each model gets a cache directory of its own, and each run a process of its own. Seconds are of the
whole call of `onnxbolt.tune`: the profiler's own library and ONNX Runtime's times included,
building the model not. With --cache, a later run with ONNXBOLT_CACHE_DIR=DIR finds everything
there, `python -m benchmarks.end_to_end --tune` for instance.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import onnx

from benchmarks.common import Row, check_names, time_argument
from benchmarks.documents import write_results
from benchmarks.exports import BY_NAME, STORED, load
from models import NAMES, build
from onnxbolt import gpu, library, pipeline
from onnxbolt.options import Options, cache_directory
from onnxbolt.tune.database import Database, default_path
from onnxbolt.tune.library import compiled
from onnxbolt.tune.progress import Plain
from onnxbolt.tune.summary import Tuning

MODELS = ("resnet50", "vgg16", "repvgg_a0_deploy", "bert_base")
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One call of the tuner, and what it left in the cache directory."""

    seconds: float
    tuning: Tuning
    compiled: int  # objects and libraries
    measured: int  # rows of the database, ONNX Runtime's among them


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = chosen.models or MODELS
    known = (*NAMES, *BY_NAME)
    check_names(names, known, parser)
    if gpu.local_arch() is None:
        print("error: no NVIDIA GPU of a supported architecture here", file=sys.stderr)
        return 1
    rows: list[Row] = []
    for name in names:
        rows.append(_survive(name, chosen))
        write_results("tuning", rows, chosen.out, chosen.append)
        _say(f"{rows[-1].name}, batch {rows[-1].batch}: {rows[-1].values}")
    return 0


def _survive(name: str, chosen: argparse.Namespace) -> Row:
    """The row, or a row with the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-cold-") as cache:
        os.environ["ONNXBOLT_CACHE_DIR"] = cache  # for the processes to come
        try:
            values = _measure(name, chosen)
        except Exception as error:  # any failure: the other models are still to be measured
            values = {"failure": f"{type(error).__name__}: {error}"[:500]}
        if chosen.cache:
            keep(Path(cache), chosen.cache)
    if name in BY_NAME:
        return Row(BY_NAME[name].model, BY_NAME[name].batch, "fp16", values=values)
    return Row(name, chosen.batch, "fp16", values=values)


def _model(name: str, batch: int | str) -> onnx.ModelProto:
    """A model of models/ in fp16 at `batch`, a number or a dimension's name, or an export, whose
    batch is its own."""
    return load(STORED, BY_NAME[name]) if name in BY_NAME else build(name, batch, "fp16")


def _measure(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    options = Options(budget=chosen.budget)
    _say(f"{name}: cold")
    cold = isolated(tune_model, name, chosen.batch, options)
    _say(
        f"{name}: cold {cold.seconds:.1f} s, {cold.tuning.trials} trials,"
        f" {cold.compiled} files; warm"
    )
    warm = isolated(tune_model, name, chosen.batch, options)
    libraries = isolated(_build_libraries, name, chosen.batch, options) if chosen.libraries else {}
    return values_of(cold, warm) | libraries


def values_of(cold: Run, warm: Run) -> dict[str, Any]:
    """A row's values; regret and rank correlation by kind of problem."""
    quality = {row.kind: row for row in cold.tuning.quality}
    return {
        "seconds_cold": round(cold.seconds, 1),
        "seconds_warm": round(warm.seconds, 1),
        "warm_compiled": warm.compiled,
        "warm_measured": warm.measured,
        "tasks": len(cold.tuning.tasks),
        "trials": cold.tuning.trials,
        "kernels": cold.tuning.kernels,
        "ended_by": cold.tuning.ended_by,
        "regret": {kind: round(row.regret, 4) for kind, row in quality.items()},
        "rank_correlation": {
            kind: round(row.rank_correlation, 3)
            for kind, row in quality.items()
            if row.rank_correlation is not None
        },
        "cores": len(os.sched_getaffinity(0)),
    }


def tune_model(name: str, batch: int | str, options: Options) -> Run:
    """Tune in a new process, so that nothing that an earlier run left in memory makes this run
    faster."""
    model = _model(name, batch)
    files, rows = _files(), _rows()
    start = time.perf_counter()
    tuning = pipeline.tune(model, options=options, progress=_say, watch=Plain(_say_total))
    spent = time.perf_counter() - start
    return Run(spent, tuning, len(_files() - files), _rows() - rows)


def _build_libraries(name: str, batch: int, options: Options) -> dict[str, Any]:
    """Seconds for the tuned model's library: linked from what was compiled as candidates, and
    compiled as if there were no tuner."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "model.onnx"
        pipeline.optimize(
            _model(name, batch),
            out,
            options=dataclasses.replace(options, tune=True, verify=False, library=False),
        )
        manifest = library.manifest_of_model(onnx.load(out))
        linked = _timed(
            lambda: library.build(
                manifest, Path(scratch) / "linked.so", compiled=compiled(manifest.instances)
            )
        )
        os.environ["ONNXBOLT_CACHE_DIR"] = str(Path(scratch) / "empty")
        anew = _timed(lambda: library.build(manifest, Path(scratch) / "anew.so"))
        sizes = [(Path(scratch) / f"{name}.so").stat().st_size for name in ("linked", "anew")]
    return {
        "seconds_linked": round(linked, 1),
        "seconds_anew": round(anew, 1),
        "bytes_linked": sizes[0],
        "bytes_anew": sizes[1],
    }


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _files() -> set[Path]:
    return {path for path in cache_directory().rglob("*") if path.suffix in (".o", ".so")}


def _rows() -> int:
    if not default_path().exists():
        return 0
    with Database() as database:
        return len(database)


def isolated(function: Callable[..., T], *arguments: object) -> T:
    """The function's result, computed in a fresh process; a crash there is an exception here."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def keep(cache: Path, into: Path) -> None:
    """Copy the contents of one cache directory into another."""
    database = default_path().name
    shutil.copytree(
        cache, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{database}*", "*.lock")
    )
    if (cache / database).exists():
        with Database(into / database) as kept:
            kept.merge(cache / database)


def _say(line: str) -> None:
    print(line, flush=True)


def _say_total(line: str) -> None:
    """Print only the totals, because a model has hundreds of lines about its tasks."""
    if line.startswith("[Total]"):
        _say(line)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--batch", type=int, default=32, help="of models that are no exports")
    parser.add_argument(
        "--budget", type=time_argument, metavar="TIME", help="of each run, e.g. 5m (default: none)"
    )
    parser.add_argument(
        "--libraries",
        action="store_true",
        help="also build the library with and without the tuner's objects",
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what was compiled and measured there"
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/tuning-<gpu>.json)"
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the result file's rows of other models"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
