"""Channels that change together: the changed model is valid, and computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxbolt.advice.axes import Axis, UntiedError, grown
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.ties import Ties
from tests.support import Net, feeds_of, run

C, WIDE = 6, 8


def widened(model: onnx.ModelProto, start: str, number: int = 0, to: int = WIDE) -> Ties:
    """The ties of a constant's axis that grows, applied; `model` is compared with the result."""
    draft = Draft(model)
    ties = Ties(draft.graph)
    axis = Axis(start, number)
    ties.follow({axis: grown(ties.size(axis), to)})
    ties.apply()
    changed = draft.model()
    onnx.checker.check_model(changed, full_check=True)
    feeds = feeds_of(model)
    for expected, got in zip(run(model, feeds), run(changed, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    return ties


def images(net: Net) -> str:
    return net.conv("x", 3, C, 3, pads=[1, 1, 1, 1])


def closed(net: Net, x: str, c: int = C) -> onnx.ModelProto:
    """The model with a layer behind x, whose own channels are the output's."""
    return net.model(net.conv(x, c, 4, 1))


def between(*ops: Callable[[Net, str], str]) -> tuple[onnx.ModelProto, str]:
    """A model with `ops` between two convolutions, and the name of the first one's weight."""
    net = Net({"x": [2, 3, 8, 8]}, opset=18)
    y = images(net)
    for op in ops:
        y = op(net, y)
    return closed(net, y), "c0"


def residual(net: Net, x: str) -> str:
    return net.node("Add", x, net.node("Relu", net.conv(x, C, C, 3, pads=[1, 1, 1, 1])))


def depthwise(net: Net, x: str) -> str:
    return net.conv(x, C, C, 3, group=C, pads=[1, 1, 1, 1])


def squeezed(net: Net, x: str) -> str:
    gate = net.node("Relu", net.conv(net.node("GlobalAveragePool", x), C, 2, 1))
    return net.node("Mul", x, net.node("Sigmoid", net.conv(gate, 2, C, 1)))


def flattened_gate(net: Net, x: str) -> str:
    """Squeeze-and-excitation by products of rows."""
    pooled = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    gate = net.node("Sigmoid", net.linear(pooled, C, C))
    shape = ints(net, 0, C, 1, 1)
    return net.node("Mul", x, net.node("Reshape", gate, shape))


def normalized_pixels(net: Net, x: str) -> str:
    mean, deviation = net.normal(1, C, 1, 1), net.const(net.rng.uniform(1, 2, (1, C, 1, 1)))
    return net.node("Div", net.node("Sub", x, mean), deviation)


def twice_transposed(net: Net, x: str) -> str:
    return net.node("Transpose", net.node("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])


def unsqueezed(net: Net, x: str) -> str:
    axes = ints(net, 0)
    return net.node("Squeeze", net.node("Unsqueeze", x, axes), axes)


def shuffled(net: Net, x: str) -> str:
    return net.node("DepthToSpace", net.node("Concat", x, x, axis=1), blocksize=2)


def ints(net: Net, *values: int) -> str:
    return net.const(list(values), np.int64)


def split_and_swapped(net: Net, x: str) -> str:
    half = net.const([C // 2, C // 2], np.int64)
    a, b = net.several("Split", x, half, outputs=2, axis=1)
    return net.node("Concat", b, a, axis=1)


@pytest.mark.parametrize(
    "ops",
    [
        (residual,),
        (depthwise, residual),
        (lambda net, x: net.batchnorm(x, C), residual),
        (squeezed,),
        (flattened_gate,),
        (normalized_pixels,),
        (lambda net, x: net.node("PRelu", x, net.normal(C, 1, 1)),),
        (lambda net, x: net.node("MaxPool", x, kernel_shape=[2, 2]),),
        (twice_transposed,),
        (lambda net, x: net.node("Resize", x, "", net.const([1, 1, 2, 2])),),
        (lambda net, x: net.node("Pad", x, ints(net, 0, 0, 1, 1, 0, 0, 1, 1)),),
        (lambda net, x: net.node("InstanceNormalization", x, net.normal(C), net.normal(C)),),
        (lambda net, x: net.node("Softplus", x),),
        (lambda net, x: net.node("Slice", x, ints(net, 1), ints(net, 7), ints(net, 2)),),
        (unsqueezed,),
    ],
)
def test_channels_are_followed_and_results_stay(ops: tuple[Callable[[Net, str], str], ...]) -> None:
    model, weight = between(*ops)
    ties = widened(model, weight)
    assert ties.alters == []
    weights = {t.name: t for t in ties.graph.tensors().values() if t.name in ("c0", "c1")}
    assert weights["c0"].shape[0] == WIDE
    assert weights["c1"].shape == (WIDE,)  # its bias


def test_concats_keep_the_parts_that_do_not_change() -> None:
    net = Net({"x": [2, 3, 8, 8]})
    y = images(net)
    wide = net.node("Concat", "x", y, net.conv("x", 3, 4, 1), axis=1)
    model = closed(net, wide, 3 + C + 4)
    ties = widened(model, "c0")
    last = ties.changes[Axis("c4", 1)]
    assert last == (*range(3 + C), -1, -1, *range(3 + C, 3 + C + 4))


def test_a_split_is_followed_where_its_parts_grow_alike() -> None:
    model, _ = between(lambda net, x: net.node("Relu", x), split_and_swapped)
    draft = Draft(model)
    ties = Ties(draft.graph)
    first = next(node for node in draft.graph.nodes if node.op == "Split").outputs[0].name
    second = next(node for node in draft.graph.nodes if node.op == "Split").outputs[1].name
    ties.follow({Axis(first, 1): grown(3, 4), Axis(second, 1): grown(3, 4)})
    ties.apply()
    changed, feeds = draft.model(), feeds_of(model)
    np.testing.assert_allclose(run(changed, feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-5)
    assert ties.changes[Axis("c0", 0)] == (0, 1, 2, -1, 3, 4, 5, -1)


def test_groups_ask_for_equal_parts() -> None:
    net = Net({"x": [2, 3, 8, 8]})
    model = closed(net, net.conv(images(net), C, C, 3, pads=[1, 1, 1, 1], group=2))
    ties = Ties(Draft(model).graph)
    with pytest.raises(UntiedError, match="2 groups") as raised:
        ties.follow({Axis("c0", 0): grown(C, WIDE)})
    assert raised.value.parts == 2
    draft = Draft(model)
    ties = Ties(draft.graph)
    ties.follow({Axis("c0", 0): grown(C, WIDE, parts=2)})
    assert ties.changes[Axis("c2", 1)] == (0, 1, 2, -1)
    ties.apply()
    feeds = feeds_of(model)
    np.testing.assert_allclose(
        run(draft.model(), feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-5
    )


def test_rows_are_followed_through_products_and_heads() -> None:
    net = Net({"x": [2, 5, 8]})
    heads = [
        net.node(
            "Transpose",
            net.node("Reshape", net.linear("x", 8, 12), ints(net, 2, 5, 2, 6)),
            perm=perm,
        )
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    ]
    weights = net.node("Softmax", net.node("MatMul", *heads[:2]), axis=-1)
    y = net.node("Transpose", net.node("MatMul", weights, heads[2]), perm=[0, 2, 1, 3])
    y = net.node("Reshape", y, ints(net, 0, 0, -1))
    model = net.model(net.linear(y, 12, 8))
    for start in heads[::2]:
        ties = widened(model, start, 3, 8)
        assert ties.alters == []
    values = Ties(Draft(model).graph)
    values.follow({Axis(heads[2], 3): grown(6, 8)})
    projection = "c10"  # the weight that reads the results
    assert values.changes[Axis(projection, 0)] == (
        0,
        1,
        2,
        3,
        4,
        5,
        -1,
        -1,
        6,
        7,
        8,
        9,
        10,
        11,
        -1,
        -1,
    )


def test_statistics_over_channels_alter_results() -> None:
    net = Net({"x": [2, 5, 8]})
    y = net.linear("x", 8, 6)
    y = net.node("LayerNormalization", y, net.normal(6), net.normal(6), axis=-1)
    model = net.model(net.linear(y, 6, 4))
    ties = Ties(Draft(model).graph)
    ties.follow({Axis("c0", 1): grown(6, 8)})
    assert ties.alters
    assert "takes statistics over them" in ties.alters[0]


def test_rms_statistics_and_embeddings() -> None:
    net = Net({"x": [2, 5]}, types={"x": TensorProto.INT64})
    rows = net.node("Gather", net.normal(10, 6), "x", axis=0)
    model = net.model(net.linear(rows, 6, 4))
    ties = Ties(Draft(model).graph)
    ties.follow({Axis("c0", 1): grown(6, 8)})
    assert Axis("c1", 0) in ties.changes


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (lambda net, x: net.node("LpNormalization", x, axis=1), "not followed through LpNorm"),
        (shuffled, "not followed through DepthToSpace"),
        (lambda net, x: net.node("Add", x, "y"), "y is an input of the graph"),
        (
            lambda net, x: net.node("Slice", x, ints(net, 0), ints(net, 3), ints(net, 1)),
            "cannot change at Slice",
        ),
        (
            lambda net, x: net.node("Resize", x, "", "", ints(net, 2, C, 16, 16)),
            "cannot change at Resize",
        ),
    ],
)
def test_ties_that_cannot_be_followed_say_why(op: Callable[[Net, str], str], reason: str) -> None:
    net = Net({"x": [2, 3, 8, 8], "y": [2, C, 8, 8]}, opset=18)
    model = net.model(op(net, images(net)))
    with pytest.raises(UntiedError, match=reason):
        Ties(Draft(model).graph).follow({Axis("c0", 0): grown(C, WIDE)})


def test_outputs_keep_their_channels() -> None:
    net = Net({"x": [2, 3, 8, 8]})
    model = net.model(net.node("Relu", images(net)))
    with pytest.raises(UntiedError, match="relu1 is an output of the graph"):
        Ties(Draft(model).graph).follow({Axis("c0", 0): grown(C, WIDE)})
