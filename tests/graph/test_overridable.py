"""Initializers that are graph inputs, too."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

import onnxbolt
from onnxbolt import cli
from onnxbolt.graph.overridable import frozen
from onnxbolt.verify import verify
from tests.support import Net


def listed(count: int | None = None, ir: int = 8) -> ModelProto:
    """A convolution and a product whose first `count` initializers (None: all four) are inputs."""
    net = Net({"x": (2, 8, 6, 6)})
    y = net.node("GlobalAveragePool", net.node("Relu", net.conv("x", 8, 16, 3, pads=[1] * 4)))
    model = net.model(net.linear(net.node("Flatten", y), 16, 10))
    model.ir_version = ir
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer[:count]
    )
    return model


def inputs(model: ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


@pytest.mark.parametrize(
    ("count", "wanted", "is_frozen"),
    [
        (None, None, True),
        (None, True, True),
        (None, False, False),
        (2, None, False),
        (2, True, True),
        (0, None, False),
        (0, True, False),
    ],
)
def test_initializers_are_frozen_if_all_are_inputs_or_asked_for(
    count: int | None, wanted: bool | None, is_frozen: bool
) -> None:
    model = listed(count)
    before = model.SerializeToString()
    result, notes = frozen(model, wanted)
    assert bool(notes) == is_frozen
    assert inputs(result) == (["x"] if is_frozen else inputs(model))
    assert (result is model) == (not is_frozen)
    assert list(result.graph.initializer) == list(model.graph.initializer)
    assert model.SerializeToString() == before


def test_ir_3_initializers_stay_as_they_are() -> None:
    model = listed(ir=3)
    assert frozen(model, None) == (model, [])


def test_optimize_freezes_and_says_so(tmp_path: Path) -> None:
    model = listed()
    report = onnxbolt.optimize(
        model, tmp_path / "out.onnx", fuse="all", library=False, archs="sm_80"
    )
    assert sorted(node.op.split("_")[0] for node in report.fused) == [
        "FusedConv",
        "FusedGemm",
        "GlobalAveragePool",
    ]
    assert report.passed
    note = (
        "freeze-initializers: 4 initializers that are graph inputs became constants, because"
        " all initializers are graph inputs; "
    )
    assert any(line.startswith(note + "freeze_initializers=False") for line in report.changes)
    assert inputs(onnx.load(tmp_path / "out.onnx")) == ["x"]
    assert verify(model, tmp_path / "out.onnx").passed


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_without_freezing_no_layer_is_fused_and_the_remedy_is_named(
    precision: str, tmp_path: Path
) -> None:
    report = onnxbolt.optimize(
        listed(),
        tmp_path / "out.onnx",
        fuse="all",
        library=False,
        archs="sm_80",
        precision=precision,
        freeze_initializers=False,
    )
    assert report.coverage == 0
    remedies = {refusal.op: refusal.remedy for refusal in report.refusals}
    for op in ("Conv", "MatMul"):
        assert (
            remedies[op] == "it is a graph input: if the model has an initializer for it,"
            " freeze_initializers=True makes it a constant"
        )
    assert len(inputs(onnx.load(tmp_path / "out.onnx"))) == 5


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(listed(2), tmp_path / "in.onnx")
    report = tmp_path / "report.json"
    paths = [str(tmp_path / name) for name in ("in.onnx", "out.onnx")]
    assert (
        cli.main(["optimize", *paths, "--no-library", "--fuse", "all", "--freeze-initializers"])
        == 0
    )
    assert (
        "freeze-initializers: 2 initializers that are graph inputs became constants, as requested"
        in capsys.readouterr().out
    )
    assert inputs(onnx.load(paths[1])) == ["x"]
    assert cli.main(["verify", *paths]) == 0
    assert (
        cli.main(
            [
                "optimize",
                *paths,
                "--no-library",
                "--fuse",
                "all",
                "--no-freeze-initializers",
                "--report",
                str(report),
            ]
        )
        == 0
    )
    assert len(inputs(onnx.load(paths[1]))) == 3
    assert "--freeze-initializers makes it a constant" in report.read_text()
