"""Products of codes with the kernels of sm_90a: which are fused, and why others are not."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import onnx
import pytest

from onnxbolt import optimize
from onnxbolt.report import Report
from tests.quantized import kernels, stored

NARROW = "the rows of its input or result are no multiples of 16 bytes"


def _optimized(
    model: onnx.ModelProto, folder: Path, arch: str = "sm_90a"
) -> tuple[Counter[str], Report]:
    """The op types, but for their steps, and the report."""
    out = folder / "fused.onnx"
    report = optimize(model, out, library=False, verify=False, archs=(arch,), fuse="all")
    types = Counter(node.op_type.partition("_")[0] for node in onnx.load(out).graph.node)
    return types, report


@pytest.mark.parametrize(
    ("name", "op", "count"),
    [
        ("cnn.modelopt.int8", "FusedQuantizedConv", 5),
        ("cnn.modelopt.fp8", "FusedQuantizedConv", 5),
        ("mlp.brevitas.int8", "FusedQuantizedGemm", 3),
        ("mobile.modelopt.fp8", "FusedQuantizedConv", 5),
    ],
)
def test_few_channels_are_padded(name: str, op: str, count: int, tmp_path: Path) -> None:
    types, _ = _optimized(stored.graph(name), tmp_path)
    assert types[op] == count


def test_a_result_that_cannot_be_padded_is_no_kernel_s(tmp_path: Path) -> None:
    """Ten classes, which are the model's output."""
    types, report = _optimized(stored.graph("cnn.modelopt.int8"), tmp_path)
    assert types["MatMul"] == 1
    assert [(row.node, row.reason) for row in report.refusals if row.op == "Gemm"] == [
        ("gemm16", NARROW)
    ]


@pytest.mark.parametrize("archs", [("sm_80",), ("sm_80", "sm_90a")])
@pytest.mark.parametrize("name", ["mlp.modelopt.int8", "cnn.ort.qoperator.u8s8.channel"])
def test_others_write_models_as_without_such_kernels(
    name: str, archs: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where only one of two architectures has none."""
    written, rows = [], []
    for without in (contextlib.nullcontext, kernels.absent):
        with without():
            out = tmp_path / "out.onnx"
            report = optimize(stored.graph(name), out, library=False, verify=False, archs=archs)
            written.append(onnx.load(out).graph.SerializeToString(deterministic=True))
            rows.append([(row.node, row.reason) for row in report.refusals])
    assert written[0] == written[1]
    assert rows[0] == rows[1]
