"""GatherND of neighbouring entries, as exporters write an index of a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.canonicalize.index_form import run
from tests.canonicalize.compare import applied, operators, random, unchanged
from tests.canonicalize.compare import model as build
from tests.support import Net

B, S, H, D = 2, 6, 4, 16


def _model(indices: list[list[int]], batch: int | str = 5) -> onnx.ModelProto:
    nodes = [("GatherND", "x at", "y")]
    shape = (len(indices), 3)
    return build(nodes, {"x": (batch, 3)}, {"y": shape}, {"at": np.array(indices)})


@pytest.mark.parametrize("indices", [[[0]], [[3]], [[-2]], [[1], [2], [3]], [[-2], [-1]]])
def test_neighbours_are_a_slice(indices: list[list[int]]) -> None:
    assert operators(applied(_model(indices), run, 1)) == ["Slice"]


@pytest.mark.parametrize("indices", [[[1], [3]], [[2], [1]], [[1], [1]]])
def test_other_entries_stay(indices: list[list[int]]) -> None:
    unchanged(_model(indices), run)


def test_an_axis_of_unknown_length_stays() -> None:
    unchanged(_model([[1]], "n"), run)


def test_single_elements_stay() -> None:
    nodes = [("GatherND", "x at", "y")]
    unchanged(build(nodes, {"x": (5, 3)}, {"y": (1,)}, {"at": np.array([[1, 2]])}), run)


def falcon() -> onnx.ModelProto:
    """One product of all queries, and of one key and value behind them, which an index of a list
    takes from the heads."""
    net = Net({"x": ("batch", S, H * D)}, opset=18)
    whole = net.node("MatMul", "x", net.const(random(H * D, (H + 2) * D) / 8))
    whole = net.node("Reshape", whole, net.const([0, 0, H + 2, D], np.int64))

    def cut(begin: int, end: int) -> str:
        at = [net.const([number], np.int64) for number in (begin, end, 2)]
        return net.node("Slice", whole, *at)

    def indexed(index: int) -> str:
        heads = net.node("Transpose", whole, perm=[2, 0, 1, 3])
        one = net.node("GatherND", heads, net.const([[index]], np.int64))
        return net.node("Transpose", one, perm=[1, 2, 0, 3])

    parts = [cut(0, H), indexed(-2), indexed(-1)]
    q, k, v = (net.node("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.node("Mul", scores, net.const(D**-0.5))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    y = net.node(
        "Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.const([0, 0, H * D], np.int64)
    )
    return net.model(net.node("MatMul", y, net.const(random(H * D, H * D, seed=1) / 8)))


def test_attention_reads_a_key_for_all_queries_in_place(tmp_path: Path) -> None:
    report = onnxbolt.optimize(falcon(), tmp_path / "out.onnx", fuse="all", library=False)
    assert report.passed
    left = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert [op.partition("_")[0] for op in left] == [
        *("Cast", "FusedGemm", "FusedAttention", "FusedGemm")
    ]
