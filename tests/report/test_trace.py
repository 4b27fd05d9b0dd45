"""A benchmark as a trace: what chrome://tracing and Perfetto need is there, and times add up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnxbolt.measurements.benchmark import Benchmark, NodeTime, Side
from onnxbolt.report.trace import trace_of

OURS = Side("fast.onnx (onnxbolt)", "NCHW, no graph", 2.0, 0.1, (1.5, 2.0, 2.5))
PEER = Side("</script>.onnx", "NHWC", 4.0, 0.1, (4.0, 4.5))
NODES = (
    NodeTime("a", "FusedGemm", (8, 16), 0.75, 120.0, 0.5),
    NodeTime("b", "FusedConv", (1, 8, 8, 16), 0.5, 0.0, 0.25),
)


def events(benchmark: Benchmark) -> list[dict[str, Any]]:
    values = json.loads(trace_of(benchmark))
    assert values["displayTimeUnit"] == "ns"
    found: list[dict[str, Any]] = values["traceEvents"]
    return found


def test_each_model_is_a_process_with_its_runs() -> None:
    found = events(Benchmark(OURS, (PEER,), {}, NODES))
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names == {1: "fast.onnx (onnxbolt) (NCHW, no graph)", 2: "</script>.onnx (NHWC)"}
    runs = [
        event for event in found if event["ph"] == "X" and (event["pid"], event["tid"]) == (1, 1)
    ]
    assert [(e["name"], e["ts"], e["dur"]) for e in runs] == [
        ("run 1", 0.0, 1.5),
        ("run 2", 1.5, 2.0),
        ("run 3", 3.5, 2.5),
    ]


def test_fused_nodes_have_a_thread_of_their_own() -> None:
    found = events(Benchmark(OURS, (PEER,), {}, NODES))
    nodes = [event for event in found if event["ph"] == "X" and event["tid"] == 2]
    assert [(e["name"], e["ts"], e["dur"]) for e in nodes] == [("a", 0.0, 0.75), ("b", 0.75, 0.5)]
    assert nodes[0]["args"]["output"] == "8x16"
    assert any(e["args"].get("name") == "fused nodes, each by itself" for e in found)
    assert not [e for e in events(Benchmark(OURS, (PEER,), {})) if e["tid"] == 2]


@pytest.mark.parametrize(("percent", "us"), [(50, 50.5), (90, 90.1), (99, 99.01)])
def test_percentiles(percent: int, us: float) -> None:
    side = Side("a", "b", 50.5, 0.8, tuple(map(float, range(1, 101))))
    assert side.percentile(percent) == pytest.approx(us)
    assert Side("a", "b", 3.0, 0.0, (3.0,)).percentile(percent) == 3.0


def test_throughput_is_that_of_all_runs() -> None:
    assert OURS.per_second == pytest.approx(500_000)
    assert Side("a", "b", 4.0, 0.0).per_second == 250_000
