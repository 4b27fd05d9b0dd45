"""Memory of a service that runs a model at random sizes: after the first tenth of the runs, neither
host nor device memory may grow by more than LIMIT.

    python -m benchmarks.serving_memory               # writes results/serving_memory-<gpu>.json
    python -m benchmarks.serving_memory hifigan --append
    python -m benchmarks.serving_memory --provider cpu --quick --runs 200   # without a GPU

Each model is served by a process of its own, with the options of `onnxbolt.session_options` and
`onnxbolt.cuda_provider` alone. Host memory is the process's resident set. Device memory is all that
is taken on the GPU, since the driver does not tell processes apart everywhere: let nothing else run
on it. The exit code is 1 if either grows too much.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

import onnxbolt
from benchmarks import varying
from benchmarks.common import Row, check_names
from benchmarks.documents import write_results
from benchmarks.tuning import isolated
from benchmarks.whole_models import add_options, use_cache
from onnxbolt import gpu
from onnxbolt.tune import cuda
from onnxbolt.tune.sessions import Arrays

MODELS = ("db_text_detector", "hifigan")
RUNS, PARTS = 10_000, 10
LIMIT = 0.01  # growth over what is taken after the first of the parts
_MIB = 1 << 20


@dataclass(frozen=True)
class Trace:
    """After each part of the runs: MiB (device memory only with a GPU), and how many sizes had been
    different until then; the median of a run's seconds.

    Memory that grows with new sizes stops growing with them; what grows on is taken by each run.
    """

    host: tuple[float, ...]
    device: tuple[float, ...]
    sizes: tuple[int, ...]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = chosen.models or MODELS
    check_names(names, varying.SUBJECTS, parser)
    if chosen.runs < PARTS:
        parser.error(f"--runs {chosen.runs}: give at least {PARTS}")
    use_cache(chosen)
    on_gpu, arch = chosen.provider == "cuda", gpu.local_arch()
    if on_gpu and arch is None:
        parser.exit(1, "error: no GPU here; --provider cpu tries the script out without one\n")
    rows: list[Row] = []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(measured(name, Path(scratch), on_gpu, chosen))
        write_results(
            "serving_memory", rows, chosen.out, chosen.append, [(name, 0) for name in MODELS]
        )
        _say(f"{name}: {rows[-1].values}")
    return 1 if any(_grown(row) for row in rows) else 0


def measured(name: str, scratch: Path, on_gpu: bool, chosen: argparse.Namespace) -> Row:
    """A model's row."""
    subject, path = varying.SUBJECTS[name], scratch / "served.onnx"
    original = subject.graph()
    least, opt, most = subject.planned_for(original)
    onnxbolt.optimize(
        original,
        path,
        precision="fp16",
        verify=False,
        fuse=chosen.fuse,
        archs=(gpu.local_arch() or "sm_90a",),
        library=on_gpu,
        min_shapes=least,
        opt_shapes=opt,
        max_shapes=most,
    )
    shapes = [
        dict(zip(most, at, strict=True))
        for at in itertools.islice(subject.random(chosen.quick), chosen.runs)
    ]
    largest = varying.feeds_of(original, tuple(most.values()), 0)
    trace = isolated(served, path, largest, shapes, on_gpu)
    values = {
        "runs": chosen.runs,
        "sizes": trace.sizes[-1],
        "new_sizes": [b - a for a, b in itertools.pairwise((0, *trace.sizes))],
        "host_mib": [round(mib, 1) for mib in trace.host],
        "host_growth": growth(trace.host),
    }
    if trace.device:
        values["device_mib"] = [round(mib, 1) for mib in trace.device]
        values["device_growth"] = growth(trace.device)
    return Row(name, 0, "fp16", round(1e6 * trace.seconds, 1), values=values)


def served(
    path: Path, largest: Arrays, shapes: Sequence[Mapping[str, tuple[int, ...]]], on_gpu: bool
) -> Trace:
    """Run the model once with inputs of each of `shapes`, which are the beginnings of the
    `largest` ones."""
    providers = [onnxbolt.cuda_provider(path)] if on_gpu else ["CPUExecutionProvider"]
    options = onnxbolt.session_options(path, providers=providers, strict=on_gpu)
    session = ort.InferenceSession(path, options, providers=providers)
    host, device, seconds = list[float](), list[float](), list[float]()
    seen, sizes = set[tuple[tuple[int, ...], ...]](), list[int]()
    for number, at in enumerate(shapes, 1):
        feeds = {
            name: array.reshape(-1)[: int(np.prod(at[name]))].reshape(at[name])
            for name, array in largest.items()
        }
        start = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - start)
        seen.add(tuple(at.values()))
        if number * PARTS % len(shapes) < PARTS:
            host.append(_resident() / _MIB)
            device += [cuda.taken_memory() / _MIB] if on_gpu else []
            sizes.append(len(seen))
    return Trace(tuple(host), tuple(device), tuple(sizes), statistics.median(seconds))


def growth(taken: Sequence[float]) -> float:
    """How much more is taken at most after the first part, as a share."""
    first, *later = taken
    return round(max(later) / first - 1, 5)


def _grown(row: Row) -> bool:
    return any(row.values.get(f"{kind}_growth", 0) >= LIMIT for kind in ("host", "device"))


def _resident() -> int:
    """The bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"of benchmarks.varying (default: {' '.join(MODELS)})",
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="of each model (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script out")
    parser.add_argument("--fuse", choices=("winning", "all"), default="winning")
    add_options(parser, "serving_memory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
