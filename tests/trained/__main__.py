"""Trained models of others before and after `optimize`, by what their users take from them: texts,
labels and speech flags have to be the same, boxes to overlap by an IoU of 0.98, masks of 0.995.

    python -m tests.trained [--from DIR] [--only PATTERN].. [--precision P] [--provider cpu|cuda]

Models and sample inputs come from public repositories, at fixed commits (files.json). They are
fetched into the cache, or read from DIR (owner/name/path in it), and each is checked by its
SHA-256. The original runs in fp32 in plain ONNX Runtime on the CPU. The optimized model, with every
possible fusion, runs as function bodies on the CPU, or with its library on the local GPU. Results
go to results.json and the table of docs/accuracy.md, as they come; those of other runs stay. The
exit code is 1 where an answer differs by more, or where the original finds nothing to compare. A
mask or box that is off in fp16 is no fault if the original, rounded to fp16 operator by operator,
is off as far; the table then has both.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime as ort

import onnxbolt
from benchmarks.machine import gpu_name
from onnxbolt.errors import OnnxboltError
from onnxbolt.gpu import local_arch
from onnxbolt.precision import LOW, rounded_apart
from onnxbolt.runtime import Provider
from onnxbolt.verify.session import CPU, CUDA, RUNTIME_ERRORS, Runner
from tests.trained import table
from tests.trained.agreement import Agreement, Array, compared, together
from tests.trained.cases import CASES, Case, Network, Networks
from tests.trained.sources import File, Store, listed

PRECISIONS = ("fp16", "keep")
FAILURES: tuple[type[Exception], ...] = (OnnxboltError, *RUNTIME_ERRORS)
ARCH = "sm_90a"  # fusions are chosen for it where no GPU takes part


def main() -> int:
    arguments = _arguments()
    ort.set_default_logger_severity(3)  # these models give many warnings
    store, files = Store(arguments.directory), listed()
    cuda = arguments.provider == "cuda"
    place = f"kernels on {gpu_name()}" if cuda else table.CPU
    wanted = arguments.only or [""]
    names = {
        pattern: fnmatch.filter([case.name for case in CASES], f"*{pattern}*") for pattern in wanted
    }
    failed = [f"no model is called {pattern!r}" for pattern, found in names.items() if not found]
    chosen = [case for case in CASES if any(case.name in found for found in names.values())]
    for case in chosen:
        for precision in arguments.precision or PRECISIONS:
            run, started = f"{case.name}, {precision}, {place}", time.monotonic()
            try:
                found, rounded = answers_compared(case, precision, cuda, store, files)
            except FAILURES as error:
                failed.append(f"{run}: {error}")
                continue
            words = "; ".join(table.in_words(found, rounded)) or "nothing to compare"
            print(f"{run}: {words} ({time.monotonic() - started:.0f} s)", flush=True)
            if not sum(one.number for one in found) or table.off(found, rounded):
                failed.append(f"{run}: {words}")
            results = table.load()
            entry = table.entry(case, precision, place, found, rounded)
            table.save(results | {table.key(case.name, precision, place): entry})
            table.PAGE.write_text(table.rendered(table.PAGE.read_text(), table.load()))
    for line in failed:
        print(f"FAILED: {line}")
    return 1 if failed else 0


def answers_compared(
    case: Case, precision: str, cuda: bool, store: Store, files: Mapping[str, File]
) -> tuple[list[Agreement], list[Agreement]]:
    """How far a case's answers agree with the originals', by kind; if some are off, the same for
    the originals rounded to the precision's type, operator by operator."""
    originals = {role: store.path(files[name]) for role, name in case.networks.items()}
    inputs = [store.path(files[name]).read_bytes() for name in case.inputs]
    before = {role: _plain(path) for role, path in originals.items()}
    with tempfile.TemporaryDirectory() as directory:
        after = {
            role: _optimized(path, Path(directory) / f"{role}.onnx", precision, cuda)
            for role, path in originals.items()
        }
        found = of_networks(case, before, after, inputs)
    if precision not in LOW or all(one.holds for one in found):
        return found, []
    rounded = {role: _rounded(path, precision, cuda) for role, path in originals.items()}
    return found, of_networks(case, before, rounded, inputs)


def of_networks(
    case: Case, before: Networks, after: Networks, inputs: Sequence[bytes]
) -> list[Agreement]:
    """How far the answers of two sets of networks agree, by kind, over all inputs."""
    return together(
        one
        for data in inputs
        for one in compared(case.answer(before, data), case.answer(after, data))
    )


def _plain(model: Path) -> Network:
    return _network(ort.InferenceSession(model, providers=[CPU]))


def _optimized(original: Path, out: Path, precision: str, cuda: bool) -> Network:
    """The optimized model. Raises OnnxboltError where `optimize` or its library fails."""
    arch = (local_arch() if cuda else None) or ARCH
    onnxbolt.optimize(
        original, out, precision=precision, fuse="all", archs=(arch,), library=cuda, verify=False
    )
    providers: list[Provider] = [onnxbolt.cuda_provider(out), CPU] if cuda else [CPU]
    options = onnxbolt.session_options(out, providers=providers, strict=cuda)
    return _network(ort.InferenceSession(out, options, providers=providers))


def _rounded(model: Path, precision: str, cuda: bool) -> Network:
    loaded = onnx.load(model)
    rounded, large = rounded_apart(loaded, precision)
    provider = CUDA if cuda else CPU  # the CPU provider computes chains of operators in fp32
    runner = Runner(rounded, provider, large=large)
    names = [out.name for out in loaded.graph.output]

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        values = runner.run(dict(inputs), names)
        return [values[name] for name in names]

    return run


def _network(session: ort.InferenceSession) -> Network:
    return lambda inputs: session.run(None, dict(inputs))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.trained")
    parser.add_argument("--from", dest="directory", type=Path, help="files at hand")
    parser.add_argument("--only", action="append", help="pattern of the models' names")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
