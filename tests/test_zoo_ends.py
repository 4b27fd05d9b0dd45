"""What stands around the fused nodes of whole CNNs on sm_90a: no change of layout, no padding, no Cast."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxbolt

NETWORKS = ("resnet50", "timm_repvgg_a0", "timm_repvgg_a0_deploy", "mobilenet_v3_large", "squeezenet1_1", "densenet121", "vgg16")
LARGE = ("vgg16",)


def params() -> list[object]:
    names = [f"{name}.{exporter}" for name in NETWORKS for exporter in ("dynamo", "ts")]
    return [pytest.param(name, marks=pytest.mark.zoo if name.startswith(LARGE) else ()) for name in names]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", params())
def test_whole_networks_stay_in_one_layout(name: str, precision: str, zoo: Callable[[str], onnx.ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    onnxbolt.optimize(zoo(name), path, precision=precision, fuse="all", archs=("sm_90a",), library=False, verify=False)
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert not {"Transpose", "Pad", "Slice"} & ops.keys()
    assert not [op for op in ops if op.startswith(("NchwToNhwc", "NhwcToNchw"))]
    if precision == "fp16":  # in bf16, ONNX Runtime lacks most kernels: what is not fused is in fp32
        assert ops["Cast"] == 0
