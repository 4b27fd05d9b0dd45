"""A benchmark as text."""

from __future__ import annotations

from collections import defaultdict

from rich.table import Table

from onnxbolt.measurements.benchmark import Benchmark, NodeTime, Side
from onnxbolt.terminal import add_row, literal_console, width

WIDTH = 140


def text(benchmark: Benchmark) -> str:
    """Tables of the models and of the fused nodes (equal nodes share a line); the last line is the
    speed-up."""
    console = literal_console(width(WIDTH))
    with console.capture() as captured:
        console.print(_models(benchmark))
        for reason in benchmark.failed.values():
            console.print(reason, soft_wrap=True)
        if benchmark.nodes:
            console.print(_nodes(benchmark))
    peer = benchmark.peer
    return (
        f"{captured.get().rstrip()}\nspeed-up {benchmark.speedup:.3f} +-"
        f" {benchmark.spread * benchmark.speedup:.3f} over ONNX Runtime ({peer.name};"
        f" {peer.setting})"
    )


def _models(benchmark: Benchmark) -> Table:
    columns = ("model", "setting", "median us", "p90", "p99", "runs/s", "spread")
    table = Table(*columns, box=None, pad_edge=False)
    for side in sorted((benchmark.ours, *benchmark.peers), key=_us):
        add_row(
            table,
            side.name,
            side.setting,
            f"{side.us:.1f}",
            f"{side.percentile(90):.1f}",
            f"{side.percentile(99):.1f}",
            f"{side.per_second:.0f}",
            f"{side.spread:.1%}",
        )
    return table


def _us(side: Side) -> float:
    return side.us


def _nodes(benchmark: Benchmark) -> Table:
    table = Table(
        "op type",
        "output",
        "nodes",
        "us each",
        "us",
        "TFLOP/s",
        "of the roofline",
        "e.g.",
        box=None,
        pad_edge=False,
    )
    groups: dict[tuple[object, ...], list[NodeTime]] = defaultdict(list)
    for node in benchmark.nodes:
        groups[node.op_type, node.shape, node.us].append(node)
    for alike in sorted(groups.values(), key=lambda alike: -sum(node.us for node in alike)):
        first, total = alike[0], sum(node.us for node in alike)
        add_row(
            table,
            first.op_type,
            "x".join(map(str, first.shape)),
            str(len(alike)),
            f"{first.us:.1f}",
            f"{total:.1f}",
            f"{first.tflops:.0f}" if first.tflops else "",
            f"{first.roofline:.0%}",
            first.name,
        )
    total = sum(node.us for node in benchmark.nodes)
    share = f"{total / benchmark.ours.us:.0%} of the model's time"
    table.add_row("total", "", str(len(benchmark.nodes)), "", f"{total:.1f}", "", share, "")
    return table
