"""Nodes that write slices of one tensor, inside ONNX Runtime: each into the memory of the one
before it, without a copy."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.epilogues import Step
from onnxbolt.families import named
from onnxbolt.ops.base import Part
from onnxbolt.ops.functions import DOMAIN
from tests import library_fixtures as fx

CONV = (Step("Bias"), Step("Relu"))
FIRST = fx.Fused("conv", *CONV, rank=4, family=named("conv_2x"), part=Part.FIRST)
NEXT = fx.Fused("conv", *CONV, rank=4, family=named("conv_2x"), part=Part.NEXT)
CHAIN = fx.Fused(
    "conv_chain",
    *CONV,
    Step("Gemm"),
    Step("Bias"),
    Step("Add"),
    rank=4,
    family=named("b2b_conv_sm90"),
    part=Part.NEXT,
)
POOL = fx.Fused("max_pool", rank=4, part=Part.NEXT)
COPY = fx.Fused("elementwise", family=named("elementwise"), part=Part.NEXT)
READ = fx.Fused("conv", *CONV, rank=4, family=named("conv_2x"), sliced=True)
READ_CHAIN = fx.Fused(
    "elementwise",
    Step("Bias"),
    Step("Relu"),
    family=named("elementwise"),
    part=Part.NEXT,
    sliced=True,
)
READ_COPY = fx.Fused("elementwise", family=named("elementwise"), sliced=True)
READ_TO_NCHW = fx.Fused("conv", *CONV, rank=4, family=named("conv_2x"), sliced=True, to_nchw=True)
OPS = (FIRST, NEXT, CHAIN, POOL, COPY, READ, READ_CHAIN, READ_COPY, READ_TO_NCHW)
WINDOW: dict[str, Any] = {"strides": [1, 1], "pads": [1] * 4, "dilations": [1, 1]}
POINT = {**WINDOW, "pads": [0] * 4, "group": 1}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fx.HostLibrary:
    built = fx.host_library(tmp_path_factory.mktemp("slices") / "slices.so", OPS)
    built.machine()
    return built


def node(
    op: fx.Fused, inputs: str, y: str, before: int = 0, after: int = 0, **attributes: Any
) -> onnx.NodeProto:
    attributes |= {"format": 1, "configs": fx.config(op.family).row()}
    if before or after:
        attributes["around"] = [0, 0, 0, before, 0, 0, 0, after]
    return helper.make_node(op.spec.name, inputs.split(), [y], y, domain=DOMAIN, **attributes)


def joined(image: Sequence[int | str]) -> onnx.ModelProto:
    """[N, H, W, 3 + 5 + 4 + 5 + 2], each slice by another kind of node."""
    return model(
        image,
        5,
        4,
        2,
        nodes=[
            node(FIRST, "x0 w0 b0", "y0", 3, 11, **WINDOW, group=1),
            node(NEXT, "x0 w1 b1 y0", "y1", 0, 16, **POINT),
            node(POOL, "x0 y1", "y2", 12, 2, **WINDOW, kernel_shape=[3, 3], ceil_mode=0),
            node(CHAIN, "x0 w1 b1 w2 b2 x1 y2", "y3", 8, 7, **POINT),
            node(COPY, "x2 y3", "y4", 17, 0),
            helper.make_node("Relu", ["y4"], ["y"]),
        ],
    )


def read(image: Sequence[int | str]) -> onnx.ModelProto:
    """Each written slice is read before the next one is written: [N, H, W, 5 + 2 + 2]."""
    return model(
        image,
        5,
        nodes=[
            node(FIRST, "x0 w0 b0", "y0", 0, 4, **WINDOW, group=1),
            node(READ_CHAIN, "y0 b3 y0", "y1", 5, 2, channels=[1, 3]),
            node(READ_CHAIN, "y1 b3 y1", "y2", 7, 0, channels=[4, 6]),
            node(READ, "y2 w0 b0", "y", **WINDOW, group=1, channels=[3, 8]),
        ],
    )


def split(image: Sequence[int | str]) -> onnx.ModelProto:
    """As a Split's parts are read: by a convolution that leaves channels last, and by copies,
    where it is a residual."""
    return model(
        image,
        9,
        nodes=[
            node(READ_COPY, "x0", "a", channels=[0, 5]),
            node(READ_COPY, "x0", "b", channels=[4, 9]),
            node(READ_TO_NCHW, "x0 w0 b0", "c", **WINDOW, group=1, channels=[4, 9]),
            helper.make_node("Relu", ["a"], ["d"]),
            helper.make_node("Relu", ["b"], ["e"]),  # as the host's kernels end
            helper.make_node("Transpose", ["c"], ["f"], perm=[0, 2, 3, 1]),
            helper.make_node("Sum", ["d", "e", "f"], ["y"]),
        ],
    )


def model(
    image: Sequence[int | str], *channels: int, nodes: Sequence[onnx.NodeProto]
) -> onnx.ModelProto:
    """`nodes` from x0, x1, .. with these channels to y."""
    random = np.random.default_rng(0)
    shapes = {
        "w0": (5, 3, 3, 5),
        "b0": (5,),
        "w1": (3, 1, 1, 5),
        "b1": (3,),
        "w2": (4, 1, 1, 3),
        "b2": (4,),
        "b3": (2,),
    }
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    inputs = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [*image, count])
        for i, count in enumerate(channels)
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)]
    opsets = [helper.make_opsetid("", fx.OPSET), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(
        graph, functions=[op.body for op in OPS], opset_imports=opsets, ir_version=8
    )


def pads(node: onnx.NodeProto) -> MutableSequence[int]:
    """The node's attribute `around`."""
    return next(attribute for attribute in node.attribute if attribute.name == "around").ints


def run(proto: onnx.ModelProto, library: fx.HostLibrary | None) -> np.ndarray:
    random, options = np.random.default_rng(1), ort.SessionOptions()
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(library.path))
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        value.name: random.standard_normal((2, 6, 7, value.shape[-1])).astype(np.float32)
        for value in session.get_inputs()
    }
    session.run(None, feeds)
    result: np.ndarray = session.run(None, feeds)[0]  # into memory that is no longer zeros
    return result


@pytest.mark.parametrize("image", [(2, 6, 7), ("N", "H", "W")], ids=["fixed", "symbolic"])
@pytest.mark.parametrize(("build", "nodes"), [(joined, 5), (read, 4), (split, 3)])
def test_slices_lie_in_one_tensor(
    library: fx.HostLibrary,
    build: Callable[..., onnx.ModelProto],
    nodes: int,
    image: Sequence[int | str],
) -> None:
    proto, launches, copies = build(image), library.launches, library.copies
    ours = run(proto, library)
    assert (library.launches - launches, library.copies - copies) == (2 * nodes, 0)
    np.testing.assert_allclose(ours, run(proto, None), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_written_into_is_copied(library: fx.HostLibrary) -> None:
    proto, copies = joined((2, 6, 7)), library.copies
    # has to stay as it is
    proto.graph.output.append(helper.make_tensor_value_info("y2", TensorProto.FLOAT, [None] * 4))
    np.testing.assert_allclose(run(proto, library), run(proto, None), rtol=1e-5, atol=1e-5)
    assert library.copies - copies == 2  # one for each run


def test_what_is_written_into_has_to_fit(library: fx.HostLibrary) -> None:
    proto = joined(("N", "H", "W"))
    pads(proto.graph.node[1])[-1] += 1
    with pytest.raises(Exception, match="2,6,7,19"):  # ONNX Runtime finds it
        run(proto, library)


def test_channels_that_the_input_lacks_are_refused(library: fx.HostLibrary) -> None:
    proto = read(("N", "H", "W"))
    next(a for a in proto.graph.node[1].attribute if a.name == "channels").ints[:] = [8, 10]
    with pytest.raises(
        Exception, match=r"input 0 has shape \[2,6,7,9\], and the node reads its channels up to 10"
    ):
        run(proto, library)


@pytest.mark.parametrize("attribute", ["around", "channels"])
def test_damaged_attributes_are_refused(library: fx.HostLibrary, attribute: str) -> None:
    proto = read((2, 6, 7))
    next(a for a in proto.graph.node[1].attribute if a.name == attribute).ints.append(1)
    with pytest.raises(Exception, match=f"attribute {attribute} is damaged"):
        run(proto, library)
