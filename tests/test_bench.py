"""`onnxbolt bench`, on the CPU: function bodies in place of kernels, a clock in place of events."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt import bench, gpu
from onnxbolt.bench import _moved, measure, node_times
from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.measurements.benchmark import Benchmark, NodeTime, Side
from onnxbolt.report.bench import text
from tests.support import Net, fused


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    net = Net({"x": (2, 16, 8, 8)})
    y = net.node("Relu", net.conv("x", 16, 32, 3, pads=[1, 1, 1, 1]))
    y = net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    for _ in range(2):
        y = net.node("Relu", net.conv(y, 32, 32, 3, pads=[1, 1, 1, 1]))
    y = net.linear(net.node("Flatten", y), 512, 8)
    original, optimized = tmp_path / "original.onnx", tmp_path / "optimized.onnx"
    onnx.save(net.model(y), original)
    onnxbolt.optimize(
        original, optimized, fuse="all", library=False, verify=False, archs=("sm_90a",)
    )
    return original, optimized


def measured(
    models: tuple[Path, Path], also: tuple[Path, ...] = (), inputs: Path | None = None
) -> Benchmark:
    return measure(*models, also, 20, inputs, 0, None, lambda message: None)


def test_every_form_of_the_original_is_a_peer_and_the_fastest_counts(
    models: tuple[Path, Path],
) -> None:
    result = measured(models, (models[0],))
    assert [side.name for side in result.peers] == [
        "original.onnx",
        "original.onnx in fp16",
        str(models[0]),
    ]
    assert result.ours.name == "optimized.onnx (onnxbolt)"
    assert result.speedup == min(side.us for side in result.peers) / result.ours.us
    lines = text(result).splitlines()
    assert lines[0].split() == [
        "model",
        "setting",
        "median",
        "us",
        "p90",
        "p99",
        "runs/s",
        "spread",
    ]
    assert len(result.ours.times) == 20
    assert result.ours.us <= result.ours.percentile(90) <= result.ours.percentile(99)
    assert lines[-1].startswith(f"speed-up {result.speedup:.3f} +- ")
    assert json.loads(result.json())["speedup"] == result.speedup


def test_every_fused_node_has_a_time_and_equal_ones_the_same(models: tuple[Path, Path]) -> None:
    nodes = node_times(onnx.load(models[1]), None, {"x": np.zeros((2, 16, 8, 8), np.float32)}, None)
    fused = [node.name for node in onnx.load(models[1]).graph.node if node.domain == "com.onnxbolt"]
    assert [node.name for node in nodes] == fused
    by_op = {
        op: [node for node in nodes if node.op_type.startswith(op)]
        for op in ("FusedConv", "FusedGemm", "MaxPool")
    }
    assert [len(found) for found in by_op.values()] == [3, 1, 1]
    assert by_op["FusedConv"][1].us == by_op["FusedConv"][2].us != by_op["FusedConv"][0].us
    first = by_op["FusedConv"][0]
    assert first.tflops == pytest.approx(2 * (2 * 8 * 8 * 32) * (3 * 3 * 16) / first.us * 1e-6)
    assert by_op["MaxPool"][0].tflops == 0 < by_op["MaxPool"][0].roofline


def test_nodes_move_their_own_channels_of_a_concat_s_result() -> None:
    net = Net({"x": (1, 8, 9, 9)})
    narrow = net.node("Relu", net.conv("x", 8, 8))
    joined = net.node(
        "Concat",
        narrow,
        net.node("MaxPool", narrow, kernel_shape=[3, 3], pads=[1] * 4),
        net.conv("x", 8, 16),
        axis=1,
    )
    graph = import_model(fused(net.model(net.conv(joined, 32, 8))))
    infer(graph)
    moved = {node.op: _moved(node) for node in graph.nodes if "around" in node.attrs}
    assert list(moved) == [
        "FusedConv_Bias_Relu_f32_part",
        "MaxPool_nhwc_f32_sliced_into",
        "FusedConv_Bias_f32_into",
    ]
    pixels, weights = 9 * 9 * 4, [4 * 8 * (8 + 1), 0, 4 * 16 * (8 + 1)]
    assert list(moved.values()) == [
        channels * pixels + weight
        for channels, weight in zip((8 + 8, 8 + 8, 8 + 16), weights, strict=True)
    ]


def test_a_symbolic_batch_takes_the_size_of_the_inputs(tmp_path: Path) -> None:
    net = Net({"x": ("N", 64)})
    original, optimized = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(net.model(net.node("Relu", net.linear("x", 64, 32))), original)
    onnxbolt.optimize(
        original, optimized, fuse="all", library=False, verify=False, archs=("sm_90a",)
    )
    np.savez(tmp_path / "x.npz", x=np.ones((24, 64), np.float32))
    (node,) = measured((original, optimized), inputs=tmp_path / "x.npz").nodes
    assert node.shape == (24, 32)


def test_models_of_other_inputs_and_originals_that_do_not_run_are_errors(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    net = Net({"other": (2, 2)})
    onnx.save(net.model(net.node("Relu", "other")), tmp_path / "other.onnx")
    with pytest.raises(InputError, match=r"other\.onnx: its inputs differ from those of"):
        measured(models, (tmp_path / "other.onnx",))
    net = Net({"x": (2, 2)})
    onnx.save(
        net.model(net.node("NobodyKnows", "x", domain="com.example")), tmp_path / "unknown.onnx"
    )
    with pytest.raises(InputError):
        measured((tmp_path / "unknown.onnx", models[1]))


@pytest.mark.skipif(gpu.local_arch() is not None, reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["[/decoder]", "[dec]/y", "layer:key:0"])
def test_names_are_shown_letter_by_letter(name: str) -> None:
    side = Side(name, "default", 2.0, 0.1)
    node = NodeTime(name, "FusedGemm_f16", (2, 4), 1.0, 1.0, 0.5)
    shown = text(Benchmark(side, (side,), {"other": f"{name} does not run"}, (node,)))
    assert shown.count(name) == 5  # both models, what failed, the node, the last line


def test_without_a_gpu_there_is_one_clear_line(
    models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *map(str, models)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no NVIDIA driver found")


@pytest.mark.parametrize(("least", "code"), [("1.9", 0), ("2.1", 4)])
def test_below_the_least_speedup_the_exit_code_is_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], least: str, code: int
) -> None:
    node = NodeTime("conv", "FusedConv_f16", (1, 2, 2, 8), 1.0, 100.0, 0.5)
    peers = Side("peer", "", 2.0, 0.01), Side("slow", "", 3.0, 0.01)
    result = Benchmark(
        Side("ours", "", 1.0, 0.01),
        peers,
        {"bf16": "ONNX Runtime cannot run bf16: no kernel"},
        (node,),
    )
    monkeypatch.setattr(bench, "bench", lambda *_, **__: result)
    assert main(["bench", "a.onnx", "b.onnx", "--min-speedup", least]) == code
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith(
        "speed-up 2.000 +- 0.028 over ONNX Runtime (peer;"
    )
    assert "cannot run bf16: no kernel" in printed.out
    assert ("less than --min-speedup 2.1" in printed.err) == (code == 4)


def test_log_format_json_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side = Side("ours", "", 1.0, 0.01)
    monkeypatch.setattr(bench, "bench", lambda *_, **__: Benchmark(side, (side,), {}, ()))
    assert main(["bench", "a.onnx", "b.onnx", "--log-format", "json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["speedup"]) == ("benchmark", 1.0)


def test_a_trace_is_written_to_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    side, trace = Side("ours", "", 1.0, 0.01, (1.0, 1.5)), tmp_path / "trace.json"
    monkeypatch.setattr(bench, "bench", lambda *_, **__: Benchmark(side, (side,), {}, ()))
    assert main(["bench", "a.onnx", "b.onnx", "--trace", str(trace), "--quiet"]) == 0
    runs = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["dur"] for event in runs] == [1.0, 1.5] * 2
    for place in (tmp_path, tmp_path / "none" / "trace.json"):
        assert main(["bench", "a.onnx", "b.onnx", "--trace", str(place)]) == 1
        assert f"--trace {place}: not the path of a file" in capsys.readouterr().err
