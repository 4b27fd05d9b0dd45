"""`onnxbolt bench`: how much faster an optimized model is."""

from __future__ import annotations

from pathlib import Path

import click

from onnxbolt.cli_base import FILE, SEED, Command, Finite, custom_ops, emit, show
from onnxbolt.errors import SpeedError


@click.command(cls=Command)
@click.argument("original", metavar="ORIGINAL.onnx", type=FILE)
@click.argument("optimized", metavar="OPTIMIZED.onnx", type=FILE)
@click.option(
    "--also",
    metavar="MODEL.onnx",
    type=FILE,
    multiple=True,
    help=(
        "Another form of the original to run in ONNX Runtime, e.g. one made by"
        " onnxruntime.transformers; the fastest is compared with."
    ),
)
@click.option("--min-speedup", type=Finite(min=0), help="Exit with 4 if the speed-up is lower.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Measurements of each model.",
)
@click.option(
    "--inputs",
    type=FILE,
    help="Run on these inputs (.npz, one array per graph input) instead of random ones.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random inputs.")
@custom_ops
@click.option(
    "--trace",
    metavar="FILE.json",
    type=FILE,
    help=(
        "Write every run, and every fused node, as events in Chrome's trace format, for"
        " chrome://tracing or Perfetto."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def bench(
    original: Path,
    optimized: Path,
    also: tuple[Path, ...],
    min_speedup: float | None,
    runs: int,
    inputs: Path | None,
    seed: int,
    custom_ops: tuple[Path, ...],
    trace: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Time an optimized model against ONNX Runtime.

    Both run on this machine's GPU: OPTIMIZED.onnx, and ORIGINAL.onnx in the CUDA execution provider
    with the best of its settings.
    """
    from onnxbolt import bench as benchmark
    from onnxbolt.files import write_whole
    from onnxbolt.output import check_apart
    from onnxbolt.report.bench import text
    from onnxbolt.report.trace import trace_of

    check_apart("trace", trace, original, optimized)
    silent = quiet or as_json
    result = benchmark.bench(
        original,
        optimized,
        also=also,
        runs=runs,
        inputs=inputs,
        seed=seed,
        custom_ops=custom_ops,
        progress=(lambda message: None) if silent else lambda message: show(message, err=True),
    )
    if trace is not None:
        write_whole(trace, trace_of(result))
    if not quiet:
        emit("benchmark", result.json if as_json else lambda: text(result), result.json)
    if slow := result.short_of(min_speedup):
        show(f"error: {slow}", err=True)
        return SpeedError.exit_code
    return 0
