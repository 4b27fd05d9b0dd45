"""Old opsets: what is fused in them is what is fused in the forms of today, and it verifies."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import onnx
import pytest

import onnxbolt
from tests.e2e import old

NETWORKS = ("resnet", "squeezenet", "mobilenet", "unet")


def fused(name: str, opset: int, directory: Path, precision: str = "fp16") -> Counter[str]:
    """How often each op type of ours is in the optimized model, which is compared with the
    original first."""
    path = directory / f"{name}.{opset}.{precision}.onnx"
    report = onnxbolt.optimize(
        getattr(old, name)(opset),
        path,
        fuse="all",
        precision=precision,
        library=False,
        archs="sm_80",
    )
    assert report.passed
    assert not report.passed_through
    return Counter(
        node.op_type for node in onnx.load(path).graph.node if node.domain == "com.onnxbolt"
    )


@functools.cache
def fused_today(name: str, directory: Path) -> Counter[str]:
    return fused(name, 17, directory)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("name", NETWORKS)
def test_old_forms_fuse_as_new_ones(
    name: str, opset: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("old")
    found = fused(name, opset, directory)
    assert (
        sum(count for op, count in found.items() if op.startswith(("FusedConv", "FusedGemm"))) > 2
    )
    assert found == fused_today(name, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("precision", ["keep", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_other_precisions(name: str, precision: str, tmp_path: Path) -> None:
    assert fused(name, 8, tmp_path, precision) == fused(name, 17, tmp_path, precision)
