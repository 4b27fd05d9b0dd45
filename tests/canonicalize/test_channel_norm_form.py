"""Normalizations of channels: those that become normalizations of rows, and near misses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.canonicalize.channel_norm_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged
from tests.support import Net, ops

CHANNELS = 6
Nodes = Sequence[tuple[Any, ...]]


def _source(
    sizes: tuple[int | str, ...] = (5, 7),
    axis: int = 1,
    gamma: tuple[int, ...] = (),
    read: str = "",
) -> onnx.ModelProto:
    """LayerNorm2d, as SAM has it; with `read`, a further node reads this tensor of it."""
    mean = {"axes": [axis], "keepdims": 1}
    nodes: Nodes = (
        ("ReduceMean", "x", "m", mean),
        ("Sub", "x m", "d"),
        ("Pow", "d two", "dd"),
        ("ReduceMean", "dd", "vv", mean),
        ("Add", "vv epsilon", "v"),
        ("Sqrt", "v", "s"),
        ("Div", "d s", "n"),
        ("Mul", "n gamma", "g"),
        ("Add", "g beta", "y"),
    )
    shape = ("n", CHANNELS, *sizes)
    vector = gamma or (CHANNELS, *(1 for _ in sizes))
    constants = {
        "gamma": random(*vector, seed=1),
        "beta": random(*vector, seed=2),
        "two": np.array(2.0),
        "epsilon": np.array(1e-3),
    }
    outputs = {"y": shape}
    if read:
        nodes = [*nodes, ("Neg", read, "z")]
        outputs["z"] = ("n", 1, *sizes) if read == "m" else shape
    return model(nodes, {"x": shape}, outputs, constants)


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("gamma", [(CHANNELS, 1, 1), (1, CHANNELS, 1, 1)])
def test_it_is_one_of_rows(axis: int, gamma: tuple[int, ...]) -> None:
    graph = applied(_source(axis=axis, gamma=gamma), run, 1)
    assert operators(graph) == ["Transpose", "LayerNormalization", "Transpose"]


@pytest.mark.parametrize("sizes", [(5,), (3, 5, 7), ("h", "w")])
def test_any_number_of_axes_and_open_sizes(sizes: tuple[int | str, ...]) -> None:
    graph = applied(_source(sizes), run, 1)
    assert operators(graph) == ["Transpose", "LayerNormalization", "Transpose"]


@pytest.mark.parametrize(
    "source",
    [
        _source(axis=2, gamma=(5, 1)),
        _source(read="m"),
        _source(read="d"),
    ],
    ids=["another axis", "the mean is read", "the deviation is read"],
)
def test_near_misses_stay(source: onnx.ModelProto) -> None:
    unchanged(source, run)


@pytest.mark.parametrize("gamma", [(CHANNELS, 5, 7), (5, 7)])
def test_factors_of_pixels_stay_behind_it(gamma: tuple[int, ...]) -> None:
    graph = applied(_source(gamma=gamma), run, 1)
    assert operators(graph)[-3:] == ["Transpose", "Mul", "Add"]


def test_it_is_fused_without_transposes_between_convolutions(tmp_path: Path) -> None:
    net = Net({"x": (1, 16, 8, 8)})
    x = net.conv("x", 16, 16, 3)
    mean: dict[str, Any] = {"axes": [1], "keepdims": 1}
    deviation = net.node("Sub", x, net.node("ReduceMean", x, **mean))
    square = net.node("Pow", deviation, net.const(2.0))
    variance = net.node("Add", net.node("ReduceMean", square, **mean), net.const(1e-6))
    normal = net.node("Div", deviation, net.node("Sqrt", variance))
    scaled = net.node("Mul", normal, net.normal(16, 1, 1))
    y = net.conv(net.node("Add", scaled, net.normal(16, 1, 1)), 16, 16, 3)
    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        net.model(y), out, archs="sm_90a", precision="fp16", fuse="all", library=False
    )
    assert report.passed
    assert [node.op.partition("_")[0] for node in report.fused] == [
        "FusedConv",
        "LayerNorm",
        "FusedConv",
    ]
    assert "Transpose" not in ops(onnx.load(out))
