"""The nodes around the fused nodes of whole CNNs on sm_90a: no layout conversion, no padding, no
Cast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt.verify import verify

NETWORKS = (
    "resnet50",
    "timm_repvgg_a0",
    "timm_repvgg_a0_deploy",
    "mobilenet_v3_large",
    "squeezenet1_1",
    "densenet121",
    "vgg16",
)
LARGE = ("vgg16",)


def params() -> list[object]:
    names = [f"{name}.{exporter}" for name in NETWORKS for exporter in ("dynamo", "ts")]
    return [
        pytest.param(name, marks=pytest.mark.zoo if name.startswith(LARGE) else ())
        for name in names
    ]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", params())
def test_whole_networks_stay_in_one_layout(
    name: str, precision: str, zoo: Callable[[str], onnx.ModelProto], tmp_path: Path
) -> None:
    path = tmp_path / "out.onnx"
    onnxbolt.optimize(
        zoo(name),
        path,
        precision=precision,
        fuse="all",
        archs=("sm_90a",),
        library=False,
        verify=False,
    )
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert not {"Transpose", "Pad", "Slice"} & ops.keys()
    assert not [op for op in ops if op.startswith(("NchwToNhwc", "NhwcToNchw"))]
    # in bf16, ONNX Runtime lacks most kernels: what is not fused is in fp32
    if precision == "fp16":
        assert ops["Cast"] == 0


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("name", "shuffles", "outputs"),
    [("shufflenet_v2.dynamo", 16, 0), ("segformer_b0.dynamo", 0, 1)],
)
def test_shuffles_and_tokens_move_little(
    name: str,
    shuffles: int,
    outputs: int,
    precision: str,
    zoo: Callable[[str], onnx.ModelProto],
    tmp_path: Path,
) -> None:
    """The batch is symbolic, and verified at one image only (tests/e2e has other sizes). In
    SegFormer the result's layout conversion remains."""
    model = zoo(name)
    image = model.graph.input[0]
    one = {image.name: tuple(dim.dim_value or 1 for dim in image.type.tensor_type.shape.dim)}
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(
        model, out, precision=precision, fuse="all", archs=("sm_90a",), library=False, verify=False
    )
    assert verify(model, out, min_shapes=one, opt_shapes=one, max_shapes=one).passed
    nodes = onnx.load(out).graph.node
    assert not [node.op_type for node in nodes if node.op_type.startswith("NchwToNhwc")]
    assert sum(node.op_type.startswith("NhwcToNchw") for node in nodes) == outputs
    axes = Counter(len(node.attribute[0].ints) for node in nodes if node.op_type == "Transpose")
    assert (axes[5], axes[3]) == (shuffles, 0)
