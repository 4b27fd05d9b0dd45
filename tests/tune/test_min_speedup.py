"""`optimize --tune --min-speedup`: the whole model is measured as `bench` does, here on the CPU,
and nothing is written where it is too slow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt import bench, library, pipeline
from onnxbolt.cli import main
from onnxbolt.errors import InputError, SpeedError
from onnxbolt.measurements.benchmark import Benchmark
from tests.support import Net
from tests.tune.local_gpu import Gpu, net

Race = Callable[..., Benchmark]


@pytest.fixture
def races(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of each race's inputs. Models race on the CPU with function bodies, and ours is
    made twice as fast as ONNX Runtime's best; the library is a file that nobody loads."""
    found: list[dict[str, tuple[int, ...]]] = []

    def race(original: Path, optimized: Path, feeds: Any, *_: object) -> Benchmark:
        found.append({name: values.shape for name, values in feeds.items()})
        assert optimized.with_suffix(".onnxbolt.so").read_bytes() == b"library"
        result = bench.race(original, optimized, feeds)
        peers = tuple(dataclasses.replace(peer, us=2 * result.ours.us) for peer in result.peers)
        return dataclasses.replace(result, peers=peers)

    monkeypatch.setattr(pipeline, "bench", SimpleNamespace(race=race))
    monkeypatch.setattr(pipeline, "Stream", object)
    monkeypatch.setattr(pipeline, "compiled", lambda instances: {})
    monkeypatch.setattr(pipeline, "kernel_names", lambda content, instances: {})
    monkeypatch.setattr(bench, "get_library_path", lambda path: None)
    monkeypatch.setattr(bench, "RUNS", 10)
    monkeypatch.setattr(
        library, "build", lambda manifest, path, progress, objects: path.write_bytes(b"library")
    )
    return found


@pytest.mark.parametrize(("least", "code"), [("1.9", 0), ("2.1", 4)])
def test_nothing_is_written_below_the_least_speedup(
    races: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], least: str, code: int
) -> None:
    source, out, lock = (tmp_path / name for name in ("in.onnx", "out.onnx", "lock"))
    report = tmp_path / "report.json"
    onnx.save(net(), source)
    flags = ["--tune", "--min-speedup", least, "--no-verify", "--quiet"]
    places = ["--lock", str(lock), "--report", str(report)]
    assert main(["optimize", str(source), str(out), *flags, *places]) == code
    assert races == [{"x": (512, 528)}]
    written = {out, out.with_suffix(".onnxbolt.so"), lock}
    assert {path for path in written if path.exists()} == (set() if code else written)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    speed = json.loads(report.read_text())["speed"]
    assert {peer["name"] for peer in speed["peers"]} == {"in.onnx", "in.onnx in fp16"}
    assert speed["peers"][0]["us"] == 2 * speed["ours"]["us"]
    errors = capsys.readouterr().err
    assert ("error: the speed-up is 2.000, less than --min-speedup 2.1" in errors) == bool(code)


def test_a_model_in_memory_is_measured_at_the_sizes_that_decided(
    races: list[Any], tmp_path: Path
) -> None:
    symbolic = Net({"x": ("batch", 528)})
    model = symbolic.model(symbolic.node("Relu", symbolic.linear("x", 528, 544)))
    given: dict[str, Any] = {"tune": True, "min_speedup": 2.0, "verify": False}
    least, opt, most = ({"x": (rows, 528)} for rows in (1, 24, 64))
    sizes: dict[str, Any] = {"min_shapes": least, "opt_shapes": opt, "max_shapes": most}
    report = onnxbolt.optimize(model, tmp_path / "out.onnx", **given, **sizes)
    assert races == [{"x": (24, 528)}]
    assert report.speed is not None
    assert f"2.00 times as fast ({report.speed.ours.us:.1f} us instead of" in report.text()
    np.savez(tmp_path / "x.npz", x=np.ones((3, 528), np.float32))
    onnxbolt.optimize(model, **given, inputs=tmp_path / "x.npz")
    assert races[1:] == [{"x": (3, 528)}]


def test_a_model_that_stays_as_it_is_gains_nothing(races: list[Any], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["other" : 1]> g (float[2] x) => (float[2] y)'
        " {y = other.Op(x)}"
    )
    given: dict[str, Any] = {"tune": True, "verify": False}
    with pytest.raises(SpeedError, match=r"as fast as before, and not min_speedup=1\.1 times"):
        onnxbolt.optimize(model, tmp_path / "out.onnx", **given, min_speedup=1.1)
    assert not list(tmp_path.glob("*.onnx"))
    onnxbolt.optimize(model, tmp_path / "out.onnx", **given, min_speedup=1.0)
    assert (tmp_path / "out.onnx").exists()
    assert races == []


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"min_speedup": 2.0}, "it needs tune=True"),
        ({"min_speedup": 2.0, "tune": True, "library": False}, "cannot be combined with library"),
        ({"min_speedup": float("nan"), "tune": True}, "give a finite number"),
        ({"min_speedup": -1.0, "tune": True}, "give a finite number"),
    ],
)
def test_options_with_which_nothing_can_be_measured(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxbolt.Options(**choices)
