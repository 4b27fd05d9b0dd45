"""Nsight Compute's metrics of an optimized model's slowest kernels: memory, tensor cores, shared
memory, and which of them is the limit.

    # optimize, run under ncu; writes results/profile-<gpu>.json
    python -m benchmarks.profile_kernels resnet50 vgg16
    # from the output of `ncu --csv --page raw --print-units base`
    python -m benchmarks.profile_kernels --csv FILE resnet50

Kernels are chosen by what the tuning database knows. One run of the model is profiled, behind two
that warm up, at the clocks as found; ncu replays each kernel with its caches flushed. Launches of
one kernel with one grid are a row; the slowest rows are kept.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

import onnxbolt
from benchmarks.common import Row
from benchmarks.documents import write_results
from models import NAMES, build
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import config_from
from onnxbolt.graph.importer import load_model
from onnxbolt.inspection import describe
from onnxbolt.verify.feeds import random_feeds

_DURATION, _RATE = "gpu__time_duration.sum", "dram__bytes.sum.per_second"  # ns, bytes
_SHARES = {  # percent of the sustainable peak
    "dram_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_share": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared_memory_share": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
    ),
}
_LIMITS = {
    "dram_share": "device memory",
    "tensor_share": "tensor cores",
    "shared_memory_share": "shared memory",
}
# share of the peak below which no unit is busy enough to be the limit (NVIDIA's rule of
# thumb for "speed of light")
_SATURATED = 0.6
_LATENCY = "latency: no unit is busy"


@dataclass(frozen=True)
class Launch:
    """One launch as ncu measured it: microseconds, bytes of device memory per second, and shares of
    peaks from 0 to 1."""

    kernel: str
    grid: str
    us: float
    bytes_per_second: float
    shares: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    models = chosen.models or ["resnet50", "vgg16"]
    if chosen.csv and len(models) != 1:
        parser.error("--csv FILE is about one model: name it")
    rows: list[Row] = []
    try:
        for model in models:
            text = (
                chosen.csv.read_text()
                if chosen.csv
                else profiled(model, chosen.batch, chosen.timeout)
            )
            rows += slowest(model, chosen.batch, launches(text), chosen.count)
            write_results("profile", rows, chosen.out, chosen.append)
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for row in rows:
        print(f"{row.name}: {row.ours_us} us, {row.config}, {row.values}")
    return 0


def profiled(model: str, batch: int, timeout: float) -> str:
    """The output of ncu for one run of the optimized model. Raises InputError if ncu is missing or
    fails."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{model}.onnx"
        onnxbolt.optimize(build(model, batch, "fp16"), path, verify=False)
        command = [
            ncu,
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--profile-from-start",
            "off",
            "--clock-control",
            "none",
            "--metrics",
            ",".join([_DURATION, _RATE, *_SHARES.values()]),
            sys.executable,
            "-m",
            __spec__.name,
            "--run",
            str(path),
        ]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except FileNotFoundError:
            raise InputError(
                "ncu, Nsight Compute's command line, is not installed: it comes with the CUDA"
                " toolkit"
            ) from None
    if result.returncode:
        raise InputError(
            f"ncu ended with {result.returncode}: {(result.stdout + result.stderr)[-500:]}"
        )
    return result.stdout


def run_once(path: Path) -> None:
    """The process under ncu: the model three times, the last one profiled."""
    session = ort.InferenceSession(
        path, onnxbolt.session_options(path, strict=True), providers=["CUDAExecutionProvider"]
    )
    feeds, driver = random_feeds(load_model(path), 0), ctypes.CDLL("libcuda.so.1")
    for _ in range(2):
        session.run(None, feeds)
    driver.cuProfilerStart()
    session.run(None, feeds)
    driver.cuProfilerStop()


def launches(text: str) -> list[Launch]:
    """The launches in ncu's output. Raises InputError if there are none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.DictReader(lines))[1:]  # behind the header comes a row of units
    if not table:
        raise InputError(
            "ncu profiled no kernel: may this user read the GPU's performance counters?"
        )
    return [_launch(row) for row in table]


def _launch(row: Mapping[str, str]) -> Launch:
    def number(metric: str) -> float:
        return float(row[metric].replace(",", ""))

    shares = tuple(number(metric) / 100 for metric in _SHARES.values())
    return Launch(
        row["Kernel Name"], row["Grid Size"], number(_DURATION) / 1e3, number(_RATE), shares
    )


def slowest(model: str, batch: int, found: Iterable[Launch], count: int) -> list[Row]:
    """The `count` kernels whose launches take longest, a row each; copies and the like among
    them where they are that slow."""
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in found:
        groups.setdefault((launch.kernel, launch.grid), []).append(launch)
    ranked = sorted(
        groups.values(), key=lambda group: -statistics.median(launch.us for launch in group)
    )
    return [_row(model, batch, place, group) for place, group in enumerate(ranked[:count], 1)]


def _row(model: str, batch: int, place: int, group: Sequence[Launch]) -> Row:
    shares = {
        name: round(statistics.median(launch.shares[i] for launch in group), 4)
        for i, name in enumerate(_SHARES)
    }
    busiest = max(shares, key=lambda name: shares[name])
    rate = statistics.median(launch.bytes_per_second for launch in group)
    values = {
        "model": f"{model}, batch {batch}",
        "launches": len(group),
        "grid": group[0].grid,
        **shares,
        "dram_tb_per_s": round(rate / 1e12, 3),
        "limit": _LIMITS[busiest] if shares[busiest] >= _SATURATED else _LATENCY,
    }
    us = round(statistics.median(launch.us for launch in group), 3)
    return Row(
        f"{model} {place}", batch, "fp16", us, config=short_name(group[0].kernel), values=values
    )


def short_name(kernel: str) -> str:
    """Our configuration in words where the name holds one (Config<(long)90, ..>), else the name
    without its template arguments."""
    if row := re.search(r"\bConfig<([^<>]*)>", kernel):
        numbers = [int(number.replace("(long)", "")) for number in row[1].split(",")]
        return describe(config_from(numbers))
    return re.split(r"[<(]", kernel.removeprefix("void "))[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"any of {', '.join(NAMES)} (default: resnet50 vgg16)",
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--count", type=int, default=5, help="kernels of each model (default: %(default)s)"
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="read what ncu wrote about the one model, instead of running it",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=400.0,
        metavar="SECONDS",
        help="of ncu, for each model (default: %(default)g)",
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/profile-<gpu>.json)"
    )
    parser.add_argument(
        "--append", action="store_true", help="keep the result file's rows of other models"
    )
    return parser


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run_once(Path(sys.argv[2]))
    else:
        sys.exit(main())
