"""Facts of written models, by which deployment chooses how to run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxbolt import optimize
from onnxbolt.graph.facts import facts_of
from onnxbolt.library import metadata
from onnxbolt.metadata import read_metadata
from onnxbolt.runtime import cuda_graph_obstacle
from tests.support import Net


def facts(model: ModelProto, path: Path) -> tuple[str, str]:
    """(sizes of the convolutions that are left, sizes of the inputs) as `optimize` notes them."""
    report = optimize(model, path, fuse="all", archs=("sm_90a",), library=False)
    assert report.passed
    entries = read_metadata(path)
    return entries["onnxbolt.convolutions"], entries["onnxbolt.inputs"]


def partly(shape: Sequence[int | str], resized: bool = False) -> ModelProto:
    """A convolution whose weight is an input, which stays with ONNX Runtime, behind one that does
    not."""
    net = Net({"x": shape, "w": (8, 16, 3, 3)})
    y = net.node("Relu", net.conv("x", 8, 16, 3, pads=[1] * 4))
    if resized:
        y = net.node("Resize", y, "", "", net.const([1, 16, 8, 8], "int64"), mode="nearest")
    return net.model(net.node("Conv", y, "w"))


@pytest.mark.parametrize(
    ("shape", "resized", "expected"),
    [
        ((1, 8, 16, 16), False, ("fixed", "fixed")),
        (("n", 8, 16, 16), False, ("open", "open")),
        ((1, 8, "?", "?"), False, ("open", "open")),
        ((1, 8, "h", "w"), True, ("fixed", "open")),
    ],
)
def test_sizes_of_what_is_left(
    shape: tuple[int | str, ...], resized: bool, expected: tuple[str, str], tmp_path: Path
) -> None:
    assert facts(partly(shape, resized), tmp_path / "out.onnx") == expected


@pytest.mark.parametrize(("batch", "inputs"), [(2, "fixed"), ("n", "open")])
def test_where_all_are_fused_none_is_left(batch: int | str, inputs: str, tmp_path: Path) -> None:
    net = Net({"x": (batch, 8, 16, 16)})
    model = net.model(net.node("Relu", net.conv("x", 8, 16, 3)))
    assert facts(model, tmp_path / "out.onnx") == ("none", inputs)


def test_sizes_that_vary_behind_fixed_inputs(tmp_path: Path) -> None:
    """The number of boxes, as detectors find it."""
    net = Net({"x": (64, 8, 16, 16), "w": (16, 8, 3, 3)})
    found = net.node("NonZero", net.node("ReduceMax", "x", axes=[1, 2, 3], keepdims=0))
    boxes = net.node("Gather", "x", net.node("Squeeze", found, net.const([0], "int64")))
    model = net.model(net.node("Conv", boxes, "w"))
    assert facts(model, tmp_path / "out.onnx") == ("open", "fixed")


def test_a_model_that_is_written_as_it_is_has_the_facts_too(tmp_path: Path) -> None:
    net = Net({"x": ("n", 8, 16, 16)}, opset=8)
    y = net.conv("x", 8, 16, 3)
    scan = helper.make_graph(
        [helper.make_node("Identity", ["e"], ["f"])],
        "body",
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [14, 14])],
        [helper.make_tensor_value_info("f", TensorProto.FLOAT, [14, 14])],
    )
    model = net.model(net.node("Scan", "", y, body=scan, num_scan_inputs=1))
    optimize(model, tmp_path / "out.onnx", library=False, verify=False)
    assert metadata(onnx.load(tmp_path / "out.onnx"))["onnxbolt.convolutions"] == "open"
    assert "decides at run time what runs" in cuda_graph_obstacle(tmp_path / "out.onnx")


def boxes(name: str) -> ModelProto:
    net = Net({"x": (1, 8, 16, 16)})
    places = net.node("NonZero", net.node("Relu", net.conv("x", 8, 16, 3)))
    net.nodes[-1].name = name
    return net.model(net.node("Transpose", places, perm=[1, 0]))


def test_whether_a_run_can_be_captured(tmp_path: Path) -> None:
    optimize(partly((1, 8, 16, 16)), tmp_path / "out.onnx", archs=("sm_90a",), library=False)
    assert read_metadata(tmp_path / "out.onnx")["onnxbolt.cuda_graph"] == "possible"
    assert cuda_graph_obstacle(tmp_path / "out.onnx") == ""
    optimize(boxes("b"), tmp_path / "boxes.onnx", archs=("sm_90a",), library=False)
    reason = "the data decide the size of the output of NonZero b"
    assert cuda_graph_obstacle(tmp_path / "boxes.onnx") == reason


def test_the_answer_of_a_source_does_not_stay(tmp_path: Path) -> None:
    """As of a model that was made by changing an optimized one."""
    model = boxes("b")
    helper.set_model_props(model, {"onnxbolt.cuda_graph": "possible"})
    optimize(model, tmp_path / "out.onnx", archs=("sm_90a",), library=False)
    assert cuda_graph_obstacle(tmp_path / "out.onnx").startswith("the data decide the size")


def test_names_in_the_answer_are_printable() -> None:
    entry = facts_of(boxes("a\n\x1b[31m\u2028b"))["onnxbolt.cuda_graph"]
    assert entry.isprintable()
    assert entry.endswith(r"of NonZero a\n\x1b[31m\u2028b")
