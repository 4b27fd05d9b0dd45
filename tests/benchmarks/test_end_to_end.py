"""The end-to-end benchmark's logic, on the CPU: function bodies in place of kernels."""
import json
from pathlib import Path

import pytest

from benchmarks.end_to_end import TARGETS, main
from benchmarks.floors import floor_us, flops
from models import build
from onnxbolt import gpu
from onnxbolt.archs import get


@pytest.mark.parametrize(
    ("name", "batch", "gigaflops", "floor"),
    [("resnet50", 32, 262, 0.33e3), ("vit_b16", 1, 35, 41), ("mobilenet_v3_large", 1, 0.43, 2.5), ("dlrm_mlp", 16384, 0.57, 2.1)],
)
def test_floors_follow_published_operation_counts(name: str, batch: int, gigaflops: float, floor: float) -> None:
    model = build(name, batch)
    assert flops(model) / 1e9 == pytest.approx(gigaflops, rel=0.05)
    assert floor_us(model, get(90)) == pytest.approx(floor, rel=0.1)


def test_a_quick_run_on_the_cpu_writes_a_row_with_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    assert main(["--provider", "cpu", "--quick", "--models", "dlrm_mlp", "--fuse", "all", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["batch"], row["dtype"]) == ("dlrm_mlp", 16384, "fp16")
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    assert row["values"]["peer_config"].startswith("fp16")
    assert "dlrm_mlp" in capsys.readouterr().out


@pytest.mark.skipif(gpu.local_arch() is not None, reason="this machine has a GPU")
def test_no_driver_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "dlrm_mlp"]) == 1
    assert capsys.readouterr().err.startswith("error: no NVIDIA driver")


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "alexnet"]) == 2
    message = capsys.readouterr().err
    assert "alexnet" in message
    assert TARGETS[0].name in message
