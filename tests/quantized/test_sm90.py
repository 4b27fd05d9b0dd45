"""Products of codes with the kernels of sm_90a: which are fused, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from onnxbolt import optimize
from onnxbolt.families import named
from onnxbolt.report import Report
from tests.quantized import stored
from tests.support import planned

NARROW = "the rows of its input or result are no multiples of 16 bytes"


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with planned(named("quantized_gemm_sm90")), planned(named("quantized_conv_sm90")):
        yield


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
        ("mobile.modelopt.fp8", "FusedQuantizedConv", 4),
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


def test_others_have_no_such_kernels(tmp_path: Path) -> None:
    types, report = _optimized(stored.graph("mlp.modelopt.int8"), tmp_path, "sm_80")
    assert not any(op.startswith("Fused") for op in types)
    assert {row.reason for row in report.refusals} == {"sm_80 has no tensor-core kernel for i8"}
