"""A benchmark as a trace in Chrome's JSON format, which chrome://tracing and Perfetto show.

Each model is a process, with one event for each of its runs. The optimized model has a second
thread with its fused nodes, each timed by itself. Events of a thread are laid end to end: the
benchmark knows how long each took, not when it began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from onnxbolt.measurements.benchmark import Benchmark, Side

Event = dict[str, Any]
_RUNS, _NODES = 1, 2  # threads


def trace_of(benchmark: Benchmark) -> str:
    """The trace as JSON; times are in microseconds."""
    events: list[Event] = []
    for process, side in enumerate((benchmark.ours, *benchmark.peers), 1):
        events += _side(process, side)
    nodes = (
        (
            node.name,
            node.us,
            {
                "op type": node.op_type,
                "output": "x".join(map(str, node.shape)),
                "TFLOP/s": round(node.tflops, 1),
                "of the roofline": round(node.roofline, 3),
            },
        )
        for node in benchmark.nodes
    )
    if benchmark.nodes:
        events.append(_named("thread_name", "fused nodes, each by itself", 1, _NODES))
        events += _end_to_end(nodes, 1, _NODES)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, indent=1) + "\n"


def _side(process: int, side: Side) -> Iterator[Event]:
    yield _named("process_name", f"{side.name} ({side.setting})", process, 0)
    yield _named("thread_name", "runs", process, _RUNS)
    runs: Iterable[tuple[str, float, dict[str, Any]]] = (
        (f"run {number}", us, {}) for number, us in enumerate(side.times, 1)
    )
    yield from _end_to_end(runs, process, _RUNS)


def _named(kind: str, name: str, process: int, thread: int) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _end_to_end(
    found: Iterable[tuple[str, float, dict[str, Any]]], process: int, thread: int
) -> Iterator[Event]:
    """Complete events ("X"), one behind the other."""
    start = 0.0
    for name, us, values in found:
        yield {
            "name": name,
            "ph": "X",
            "ts": round(start, 3),
            "dur": round(us, 3),
            "pid": process,
            "tid": thread,
            "args": values,
        }
        start += us
