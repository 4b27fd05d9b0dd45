"""The end-to-end benchmark's logic, on the CPU: function bodies in place of kernels."""

import dataclasses
import json
import math
import os
import sys
from pathlib import Path

import onnx
import pytest

from benchmarks import device_time, end_to_end
from benchmarks.columns import TABLES
from benchmarks.common import Row
from benchmarks.device_time import DeviceTime, device_times
from benchmarks.end_to_end import PEER, PYTORCH, compared, main
from benchmarks.floors import floor_us, flops
from benchmarks.forms import FUSED, OPSETS, PLAIN, exported_by_pytorch
from benchmarks.targets import TARGETS, Target
from models import build
from onnxbolt import gpu
from onnxbolt.archs import get
from onnxbolt.tune.sessions import Found, Sample, Setting, Source


@pytest.mark.parametrize(
    ("name", "batch", "gigaflops", "floor"),
    [
        ("resnet50", 32, 262, 0.33e3),
        ("vit_b16", 1, 35, 41),
        ("mobilenet_v3_large", 1, 0.43, 2.5),
        ("dlrm_mlp", 16384, 0.57, 2.1),
    ],
)
def test_floors_follow_published_operation_counts(
    name: str, batch: int, gigaflops: float, floor: float
) -> None:
    model = build(name, batch)
    assert flops(model) / 1e9 == pytest.approx(gigaflops, rel=0.05)
    assert floor_us(model, get(90)) == pytest.approx(floor, rel=0.1)


def test_a_quick_run_on_the_cpu_writes_a_row_with_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    assert (
        main(
            [
                "--provider",
                "cpu",
                "--quick",
                "--models",
                "dlrm_mlp-16384",
                "--fuse",
                "all",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["batch"], row["dtype"]) == ("dlrm_mlp", 16384, "fp16")
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    assert row["values"]["device_ratio"] == pytest.approx(
        row["values"]["peer_device_us"] / row["values"]["device_us"], rel=1e-2
    )
    assert row["values"]["peer_config"].startswith("plain export")
    assert "dlrm_mlp" in capsys.readouterr().out


@pytest.mark.skipif(gpu.local_arch() is not None, reason="this machine has a GPU")
def test_no_driver_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--models", "dlrm_mlp"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: no NVIDIA driver")


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "alexnet"]) == 2
    message = capsys.readouterr().err
    assert "alexnet" in message
    assert TARGETS[0].name in message


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that were measured, each with a result at once; VGG fails."""
    names: list[str] = []

    def measure(target: Target, *_: object) -> Row:
        names.append(target.name)
        if target.model == "vgg16":
            raise RuntimeError("no memory")
        return Row(
            target.model,
            target.batch,
            "fp16",
            10.0,
            "peer",
            20.0,
            2.0,
            values={"peer_config": "any"},
        )

    monkeypatch.setattr(end_to_end, "_measure", measure)
    return names


def test_a_model_that_fails_costs_its_row_alone_and_can_be_measured_again(
    tmp_path: Path, measured: list[str]
) -> None:
    out = ("--provider", "cpu", "--append", "--out", str(tmp_path / "results.json"))
    assert main([*out, "--models", "resnet50-32,vgg16-32,dlrm_mlp-16384"]) == 1
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["values"].get("failure") for row in rows] == [None, "RuntimeError: no memory", None]
    measured.clear()
    assert main([*out, "--models", "vgg16-32,bert_base"]) == 1
    assert measured == ["vgg16-32", "bert_base-32"]
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["resnet50", "dlrm_mlp", "vgg16", "bert_base"]


class Sleeper:
    """A session of a setting, as far as a row needs one."""

    def __init__(self, us: float, queues: bool = True) -> None:
        self.us, self.queues = us, queues

    def measure_queued(self, count: int) -> list[float]:
        return [self.us]


def found(label: str, us: float, tried: dict[str, float | str] | None = None) -> Found:
    return Found(Source(label, b""), Setting(graph=True), Sleeper(us), tried or {})  # type: ignore[arg-type]


def test_a_sides_device_time_is_the_faster_of_with_and_without_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def captured(source: Source, setting: Setting, *_: object) -> Found:
        assert setting.graph
        return found(source.label, {"ours": 7.0, "peer": 30.0}[source.label])

    monkeypatch.setattr(device_time, "only", captured)
    sides = {
        label: dataclasses.replace(found(label, us), setting=Setting(graph=False))
        for label, us in (("ours", 10.0), ("peer", 20.0))
    }
    times = device_times(sides, {}, "stream", 2, 3)  # type: ignore[arg-type]
    assert times == {"ours": DeviceTime(7.0), "peer": DeviceTime(20.0)}
    times = device_times(sides, {}, "stream", 2, 3, capture=False)  # type: ignore[arg-type]
    assert times == {"ours": DeviceTime(10.0), "peer": DeviceTime(20.0)}


def test_a_device_time_says_that_it_is_of_single_runs() -> None:
    setting = Setting(graph=True)
    sides = {
        "ours": Found(Source("ours", b""), setting, Sleeper(5.0), {}),  # type: ignore[arg-type]
        "peer": Found(Source("peer", b""), setting, Sleeper(9.0, queues=False), {}),  # type: ignore[arg-type]
    }
    times = device_times(sides, {}, None, 2, 3)
    assert times == {"ours": DeviceTime(5.0), "peer": DeviceTime(9.0, queued=False)}


def test_no_ratio_of_runs_back_to_back_has_single_runs_on_one_side() -> None:
    sides = {PLAIN: found(PLAIN, 8.0), PEER: found(FUSED, 6.0)}
    samples = {PLAIN: Sample((8.0, 8.0)), PEER: Sample((6.0, 6.0))}
    device = {PLAIN: DeviceTime(7.5), PEER: DeviceTime(68000.0, queued=False)}
    values = compared(Target("bert_base", 32), samples, device, sides, {PLAIN: 1e-3}).values
    assert "device_ratio" not in values
    assert (values["device_us"], values["peer_device_us"]) == (7.5, 68000.0)
    assert values["not_queued"] == ["peer_device_us"]
    row = {"values": values}
    assert TABLES["end_to_end"].columns["back to back, ms"](row) == "0.007"
    assert TABLES["end_to_end"].columns["the provider's, ms"](row) == "68.000, single runs"
    assert TABLES["end_to_end"].columns["ratio, back to back"](row) == ""


def test_a_row_has_both_sides_settings_and_its_ratio_is_that_of_the_plain_export() -> None:
    name = "onnxruntime.transformers: NCHW, EXHAUSTIVE, CUDA graph"
    sides = {
        PLAIN: found(PLAIN, 8.0, {f"{PLAIN}: any": 8.0}),
        FUSED: found(FUSED, 5.0, {name: 5.0}),
        PEER: found(FUSED, 6.0, {name: 6.0, "PyTorch's export, opset 23: any": 7.0}),
    }
    samples = {
        side: Sample((us, us))
        for side, us in ((PLAIN, 8.0), (FUSED, 5.0), (PEER, 6.0), (PYTORCH, 4.0))
    }
    device = {PLAIN: DeviceTime(7.5), FUSED: DeviceTime(4.5), PEER: DeviceTime(6.0)}
    row = compared(
        Target("bert_base", 32, "bert"), samples, device, sides, {PLAIN: 1e-3, FUSED: 2e-3}
    )
    assert (row.ours_us, row.peer_us, row.ratio) == (8.0, 6.0, 0.75)
    assert "CUDA execution provider" in row.peer
    values = row.values
    assert (values["transformers_us"], values["transformers_ratio"]) == (5.0, 1.2)
    assert (values["device_ratio"], values["transformers_device_ratio"]) == (0.8, 1.333)
    assert (values["pytorch_us"], values["pytorch_ratio"]) == (4.0, 0.5)
    assert values["tried"] == {
        "onnxbolt": {f"{PLAIN}: any": 8.0, name: 5.0},
        "onnxruntime": {name: 6.0, "PyTorch's export, opset 23: any": 7.0},
    }


def test_onnx_runtime_gets_every_form_of_a_transformer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, target = build("dlrm_mlp", 8, "fp16"), Target("dlrm_mlp", 8, "bert")
    forms = ("PyTorch's export, opset 18", "PyTorch's export, opset 23")
    monkeypatch.setattr(end_to_end, "fused_by_onnxruntime", lambda *_: {FUSED: model})
    monkeypatch.setattr(
        end_to_end, "exported_by_pytorch", lambda *_: (dict.fromkeys(forms, model), {})
    )
    models, _ = end_to_end._forms(target, model, {}, tmp_path, "stream")  # type: ignore[arg-type]
    labels = [source.label for source in end_to_end._peers(target, models)]
    assert labels == [f"{PLAIN}, fp16 inputs", f"{PLAIN}, fp32 inputs", FUSED, *forms]


def test_an_export_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    target = Target("no such model", 1, "vit")
    found, missing = exported_by_pytorch(target, {}, tmp_path)
    assert found == {}
    assert missing.keys() == OPSETS.keys()
    assert all("Error: " in reason for reason in missing.values())  # no PyTorch, or no such model


def test_pytorchs_models_have_the_parameters_of_ours() -> None:
    pytest.importorskip("torch")
    from benchmarks.pytorch import MODELS

    for name in {target.model for target in TARGETS}:
        ours = sum(
            math.prod(tensor.dims)
            for tensor in build(name).graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
        )
        assert sum(p.numel() for p in MODELS[name]().parameters()) == pytest.approx(
            ours, rel=1e-4
        ), name
