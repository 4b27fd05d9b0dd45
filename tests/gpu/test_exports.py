"""Models as torch.onnx.export writes them, on a GPU: every fused node right in each precision, and
the forms of transformers that the models of models/ lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import NodeProto

import onnxbolt
from onnxbolt.verify import verify
from tests.gpu.prepared import ARCH
from tests.zoo.stored import load

pytestmark = pytest.mark.gpu
CUDA = "CUDAExecutionProvider"


def _attribute(node: NodeProto, name: str) -> bool:
    return any(attribute.name == name for attribute in node.attribute)


def _attends(node: NodeProto) -> bool:
    return node.op_type.startswith("FusedAttention")


def in_windows(node: NodeProto) -> bool:
    """Attention that reads and writes windows of images."""
    return _attends(node) and _attribute(node, "windows")


def of_one_product(node: NodeProto) -> bool:
    """Attention that reads one product's result by strides."""
    return _attends(node) and len({*node.input[:3]}) == 1


def masked(node: NodeProto) -> bool:
    return _attends(node) and len(node.input) > 3


def quick_gelu(node: NodeProto) -> bool:
    return "QuickGelu" in node.op_type


def norm(node: NodeProto) -> bool:
    return "Norm" in node.op_type


FORMS: dict[str, Callable[[NodeProto], bool]] = {
    "swin_tiny.dynamo18.sdpa": in_windows,
    "swin_tiny.ts17.eager": in_windows,
    "vit_base.dynamo18.sdpa": of_one_product,
    "clip_vision.dynamo23.sdpa": quick_gelu,
    "minilm.ts17.eager.mask": masked,
    "modernbert.ts17.eager.mask": masked,
    "convnext_tiny.ts17": norm,
    "gpt2.dynamo23.sdpa": of_one_product,
}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("name", FORMS)
def test_an_export_is_right_on_a_gpu(name: str, precision: str, tmp_path: Path) -> None:
    original, path = load(name), tmp_path / "out.onnx"
    onnxbolt.optimize(original, path, precision=precision, fuse="all", archs=(ARCH,), verify=False)
    nodes = onnx.load(path, load_external_data=False).graph.node
    assert any(FORMS[name](node) for node in nodes if node.domain == "com.onnxbolt")
    result = verify(original, path, providers=[CUDA])
    assert result.passed, result.text()
