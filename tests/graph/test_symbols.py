"""Symbolic dimensions: what equal names say holds for every size, and names mean one thing over
several runs of inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.graph.edit import remove
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.symbols import in_words
from tests.support import Net, assert_same, ops, run


def inferred(net: Net, *outputs: str) -> tuple[gs.Graph, dict[str, list[int | str | None]]]:
    graph = import_model(net.model(*outputs))
    infer(graph)
    return graph, {tensor.name: tensor.shape for node in graph.nodes for tensor in node.outputs}


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize(
    "padding",
    [
        {},
        {"pads": [0, 0, 0, 0]},
        {"pads": [1, 0, 0, 0]},
        {"pads": [1, 0, 1, 0]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
    ],
)
def test_names_of_windows_tell_their_sizes(
    op: str, kernel: int, stride: int, padding: dict[str, Any]
) -> None:
    tells(
        op,
        strides=[stride, 1],
        kernel_shape=[kernel + 1 if "pads" in padding else kernel, 1],
        **padding,
    )


@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
@pytest.mark.parametrize(("stride", "pad"), [(1, 2), (2, 1), (1, 0)])
def test_names_of_dilated_windows_tell_their_sizes(op: str, stride: int, pad: int) -> None:
    tells(op, strides=[stride, 1], kernel_shape=[3, 1], dilations=[2, 1], pads=[pad, 0, pad, 0])


def tells(op: str, **attributes: Any) -> None:
    """The name of the output's height, with sizes in the place of H, is what ONNX Runtime
    computes."""
    net = Net({"x": (1, 2, "H", 9)})
    weight = [net.normal(2, 2, *attributes["kernel_shape"])] if op == "Conv" else []
    y = net.node(op, "x", *weight, **attributes)
    model, name = net.model(y), inferred(net, y)[1][y][2]
    for size in range(5, 12):
        height = run(model, {"x": np.zeros((1, 2, size, 9), np.float32)})[0].shape[2]
        assert eval(str(name), {"H": size}) == height


def test_names_that_inference_made_up_are_not_shown() -> None:
    assert in_words(["batch", 8, "unk__/m/Tile_output_0.-3", None]) == "[batch, 8, ?, ?]"
    assert in_words([]) == "[]"
    assert in_words(None) == "of unknown shape"


def test_residuals_of_images_of_any_size_are_fused() -> None:
    net = Net({"x": ("N", 8, "H", "W")})
    y = net.node("Relu", net.conv("x", 8, 16, 7, strides=[2, 2], pads=[3] * 4))
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stride in (1, 2):
        z = net.conv(
            net.node("Relu", net.conv(y, 16, 16, 3, strides=[stride] * 2, pads=[1] * 4)),
            16,
            16,
            3,
            pads=[1] * 4,
        )
        y = net.node("Relu", net.node("Add", z, net.conv(y, 16, 16, strides=[stride] * 2)))
    model = net.model(y)
    for dim, size in zip(
        model.graph.input[0].type.tensor_type.shape.dim, (2, 8, 37, 50), strict=True
    ):
        dim.dim_value = size
    at_a_size = assert_same(model)
    assert sum("_Add_Relu" in op for op in ops(at_a_size)) == 2
    graph, shapes = inferred(net, y)
    assert [shapes[t.name] for t in graph.nodes[-2].inputs] == [
        shapes[graph.nodes[-2].outputs[0].name]
    ] * 2


@pytest.mark.parametrize("op", ["constant", "reflect"])
def test_padding_and_the_window_behind_it_cancel(op: str) -> None:
    net = Net({"x": ("B", 8, "T")})
    padded = net.node("Pad", "x", net.const([0, 0, 4, 0, 0, 0], np.int64), mode=op)
    y = net.node("Conv", padded, net.normal(8, 8, 3), dilations=[2])
    _, shapes = inferred(net, y)
    assert (shapes[padded], shapes[y]) == (["B", 8, "(T+4)"], ["B", 8, "T"])


def test_windows_that_differ_have_other_names() -> None:
    net = Net({"x": (1, 8, "H", "W")})
    a = net.conv("x", 8, 8, 3, strides=[2, 2], pads=[1] * 4)
    b = net.conv("x", 8, 8, 2, strides=[2, 2])
    c = net.conv("x", 8, 8, 3)
    _, shapes = inferred(net, a, b, c)
    assert len({shape[2] for shape in shapes.values()}) == 3


def test_a_name_keeps_its_meaning_when_nodes_go() -> None:
    net = Net({"x": (1, 8, "H", 9)})
    a = net.node("NonZero", net.node("Relu", "x"))
    b = net.node("NonZero", net.node("Abs", "x"))
    graph, shapes = inferred(net, a, b)
    assert shapes[a][1] != shapes[b][1]
    kept = next(tensor for tensor in graph.outputs if tensor.name == b)
    name = kept.shape[1]
    graph.outputs = [kept]
    remove(
        graph, [node for node in graph.nodes if any(tensor.name == a for tensor in node.outputs)]
    )
    added = gs.Variable("later")
    graph.nodes.append(gs.Node("NonZero", "later", inputs=[graph.inputs[0]], outputs=[added]))
    infer(graph)
    assert kept.shape[1] == name
    assert added.shape[1] not in (None, name)


def test_names_stored_in_the_model_do_not_hide_equal_sizes() -> None:
    net = Net({"x": (1, 8, "H", "W")})
    y = net.conv("x", 8, 8, 3, pads=[1] * 4)
    model = net.model(net.node("Relu", y))
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "unk__7"
    graph = import_model(model)
    infer(graph)
    assert graph.outputs[0].shape == [1, 8, "H", "W"]


def test_a_resize_to_the_sizes_of_another_image_has_their_names() -> None:
    """As TorchScript computes them, by Gather, Unsqueeze, Concat, Slice and Cast."""
    net = Net({"x": ("n", 8, "h", "w"), "y": ("n", 8, "a", "b")})
    axes = net.const([0], np.int64)
    sizes = [
        net.node(
            "Unsqueeze", net.node("Gather", net.node("Shape", "y"), net.const(i, np.int64)), axes
        )
        for i in (2, -1)
    ]
    kept = net.node("Slice", net.node("Shape", "x"), axes, net.const([2], np.int64), axes)
    spatial = net.node("Cast", net.node("Concat", *sizes, axis=0), to=7)
    z = net.node("Resize", "x", "", "", net.node("Concat", kept, spatial, axis=0))
    _, shapes = inferred(net, net.node("Relu", z))
    assert shapes[z] == ["n", 8, "a", "b"]


@pytest.mark.parametrize(
    ("scales", "shape"),
    [([1, 1, 2, 1], ["n", 8, "(h*2)", "w"]), ([1, 1, 1, 4], ["n", 8, "h", "(w*4)"])],
)
def test_whole_scales_name_sizes(scales: list[int], shape: list[object]) -> None:
    net = Net({"x": ("n", 8, "h", "w")})
    y = net.node("Resize", "x", "", net.const(scales))
    z = net.node("Resize", "x", "", net.const([1, 1, 0.5, 1]))
    _, shapes = inferred(net, net.node("Relu", y), net.node("Relu", z))
    assert shapes[y] == shape
    assert shapes[z][3] == "w"
    assert shapes[z][2] not in ("h", "(h*0)")


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 1]},
        {"strides": [2, 1], "pads": [1, 0, 1, 0]},
        {"strides": [3, 1], "pads": [0, 0, 2, 0], "output_padding": [1, 0]},
        {"dilations": [2, 1], "pads": [1, 0, 0, 0]},
        {"strides": [2, 1], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 1], "auto_pad": "VALID"},
    ],
)
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_names_of_transposed_windows_tell_their_sizes(
    kernel: int, attributes: dict[str, Any]
) -> None:
    net = Net({"x": (1, 2, "H", 9)})
    y = net.node("ConvTranspose", "x", net.normal(2, 2, kernel, 1), **attributes)
    model, name = net.model(y), inferred(net, y)[1][y][2]
    for size in range(3, 8):
        height = run(model, {"x": np.zeros((1, 2, size, 9), np.float32)})[0].shape[2]
        assert eval(str(name), {"H": size}) == height


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ([0, 24, -1], ["N", 24, "(H*W)"]),
        ([0, 0, 0, -1], ["N", 24, "H", "W"]),
        ([0, 12, -1], ["N", 12, "((H*W)*2)"]),
        ([-1, 24], ["(H*N*W)", 24]),
        ([-1, 5], [None, 5]),
    ],
)
def test_a_reshape_leaves_a_quotient(target: list[int], shape: list[int | str | None]) -> None:
    net = Net({"x": ("N", 24, "H", "W")})
    y = net.node("Reshape", "x", net.const(target, np.int64))
    found = inferred(net, y)[1][y]
    assert [None if str(size).startswith("unk__") else size for size in found] == shape


def test_a_residual_around_divided_heads_is_fused() -> None:
    """As a text recognizer's: tokens of an image of any width, and their attention's result."""
    net = Net({"x": ("N", 3, 8, "W")})
    image = net.node("AveragePool", net.conv("x", 3, 32), kernel_shape=[8, 1])
    rows = net.node("Reshape", image, net.const([0, 32, -1], np.int64))
    tokens = net.node("Transpose", rows, perm=[0, 2, 1])
    heads = net.node("Reshape", net.linear(tokens, 32, 32), net.const([0, -1, 4, 8], np.int64))
    turned = net.node("Transpose", net.node("Tanh", heads), perm=[0, 1, 3, 2])
    joined = net.node("Reshape", turned, net.const([0, -1, 32], np.int64))
    y = net.node("Add", tokens, net.linear(joined, 32, 32))
    assert "Add" not in ops(assert_same(net.model(net.linear(y, 32, 16)), arch=90))


@pytest.mark.parametrize("height", ["H", "2*s0", "a.b", "floor(x/2)"])
def test_moves_of_any_name_cancel(height: str) -> None:
    """A Pad and the windows behind it, of a name and of a size that follows from it."""
    net = Net({"x": (1, 8, height, 7)})

    def padded(y: str) -> str:
        pads = net.const([0, 0, 2, 1, 0, 0, 2, 1], np.int64)
        y = net.conv(net.node("Relu", net.node("Pad", y, pads, mode="reflect")), 8, 8, 3)
        return net.node("MaxPool", y, kernel_shape=[3, 1], strides=[1, 1])

    whole, half = padded("x"), net.conv("x", 8, 8, 3, strides=[2, 2], pads=[1] * 4)
    again = padded(half)
    names = inferred(net, whole, again)[1]
    assert names[whole][2] == height
    assert names[again][2] == names[half][2]


def test_names_follow_a_size_that_becomes_known() -> None:
    """A pass may replace what a size was made up for."""
    net = Net({"x": (1, 8, "H", 7), "pads": ("p",)}, types={"pads": onnx.TensorProto.INT64})
    unknown = net.node("Pad", "x", "pads")
    y = net.conv(unknown, 8, 8, 3, pads=[0, 1, 0, 1])
    graph, names = inferred(net, net.node("Relu", y))
    assert names[y][2] == f"(unk__{unknown}.-2-2)"
    pad = graph.nodes[0]
    pad.op, pad.inputs, pad.origin = "Relu", [pad.inputs[0]], None
    infer(graph)
    assert graph.nodes[1].outputs[0].shape[2] == "(H-2)"


def test_a_slice_of_one_axis_leaves_the_others() -> None:
    """Halves of a batch, as torch.chunk is exported: their ends are computed."""
    net = Net({"x": ("N", 8, "H", 7)})
    size = net.node("Gather", net.node("Shape", "x"), net.const([0], np.int64))
    end = net.node("Div", size, net.const([2], np.int64))
    bounds = net.const([0], np.int64), end, net.const([-4], np.int64)
    y = net.node("Slice", "x", *bounds, net.const([1], np.int64))
    batch, *others = inferred(net, y)[1][y]
    assert others == [8, "H", 7]
    assert batch != "N"
