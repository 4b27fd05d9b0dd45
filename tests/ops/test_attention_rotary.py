"""Rotary embeddings: each form is recognized, and what is read of it gives its results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxbolt
from onnxbolt.canonicalize import canonicalize
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.ops.attention.rotary import Rotation, rotation
from tests.support import Net, feeds_of, run

B, H, S, D = 2, 3, 10, 16
Turn = Callable[[Net, str, int], str]


def cut(net: Net, x: str, begin: int, end: int, step: int = 1) -> str:
    return net.node("Slice", x, *(net.const([n], np.int64) for n in (begin, end, -1, step)))


def halves(net: Net, x: str, width: int) -> str:
    a, b = cut(net, x, 0, width // 2), cut(net, x, width // 2, 2**63 - 1)
    return net.node("Concat", net.node("Neg", b), a, axis=-1)


def split_halves(net: Net, x: str, width: int) -> str:
    sizes = net.const([width // 2] * 2, np.int64)
    a, b = net.several("Split", x, sizes, outputs=2, axis=3)
    return net.node("Concat", net.node("Neg", b), a, axis=3)


def neighbours(net: Net, x: str, width: int) -> str:
    a, b = (cut(net, x, begin, width, 2) for begin in (0, 1))
    return _stacked(net, a, b, width)


def _stacked(net: Net, a: str, b: str, width: int) -> str:
    axis = net.const([-1], np.int64)
    pairs = [net.node("Unsqueeze", each, axis) for each in (net.node("Neg", b), a)]
    return net.node(
        "Reshape", net.node("Concat", *pairs, axis=-1), net.const([0, 0, 0, width], np.int64)
    )


def unbound(net: Net, x: str, width: int) -> str:
    """x.reshape(.., -1, 2).unbind(-1), as diffusers have it, by a Split."""
    pairs = net.node("Reshape", x, net.const([0, 0, 0, width // 2, 2], np.int64))
    parts = net.several("Split", pairs, net.const([1, 1], np.int64), outputs=2, axis=-1)
    a, b = (net.node("Squeeze", part, net.const([-1], np.int64)) for part in parts)
    return _stacked(net, a, b, width)


def gathered(net: Net, x: str, width: int) -> str:
    """The same by Gathers."""
    pairs = net.node("Reshape", x, net.const([0, 0, 0, width // 2, 2], np.int64))
    a, b = (net.node("Gather", pairs, net.const(i, np.int64), axis=-1) for i in (0, 1))
    return _stacked(net, a, b, width)


def tables(net: Net, width: int) -> tuple[str, str]:
    angles = net.rng.standard_normal((1, 1, S, width))
    return net.const(np.cos(angles)), net.const(np.sin(angles))


def summed(turn: Turn, rotated: int = D, swapped: bool = False) -> tuple[onnx.ModelProto, str]:
    """x cos + turn(x) sin of the first `rotated` elements."""
    net = Net({"x": (B, H, S, D)})
    x = "x" if rotated == D else cut(net, "x", 0, rotated)
    cos, sin = tables(net, rotated)
    straight = net.node("Mul", *((cos, x) if swapped else (x, cos)))
    crossed = net.node("Mul", turn(net, x, rotated), sin)
    y = net.node("Add", *((crossed, straight) if swapped else (straight, crossed)))
    if rotated == D:
        return net.model(y), y
    return net.model(net.node("Concat", y, cut(net, "x", rotated, D), axis=-1), y), y


def written_out(crossed: bool = True) -> tuple[onnx.ModelProto, str]:
    """[a cos - b sin, b cos + a sin]; without `crossed` its second half is no rotation."""
    net = Net({"x": (B, H, S, D)})
    a, b = cut(net, "x", 0, D // 2), cut(net, "x", D // 2, D)
    cos, sin = tables(net, D // 2)
    first = net.node("Sub", net.node("Mul", a, cos), net.node("Mul", b, sin))
    straight, turned = (b, a) if crossed else (a, b)
    second = net.node("Add", net.node("Mul", straight, cos), net.node("Mul", turned, sin))
    y = net.node("Concat", first, second, axis=-1)
    return net.model(y), y


FORMS = {
    "halves": (summed(halves), False, D),
    "halves, factors and summands in another order": (summed(halves, swapped=True), False, D),
    "halves of a Split": (summed(split_halves), False, D),
    "halves of a part": (summed(halves, D // 2), False, D // 2),
    "neighbours": (summed(neighbours), True, D),
    "neighbours, unbound": (summed(unbound), True, D),
    "neighbours, gathered": (summed(gathered), True, D),
    "neighbours of a part": (summed(neighbours, D // 2), True, D // 2),
    "halves, written out": (written_out(), False, D),
}


def found_in(model: onnx.ModelProto, y: str) -> Rotation | None:
    graph = import_model(model)
    infer(graph)
    canonicalize(graph)
    return next((rotation(node) for node in graph.nodes if node.outputs[0].name == y), None)


def turned(x: np.ndarray, interleaved: bool) -> np.ndarray:
    pairs = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    a, b = np.split(x, 2, axis=-1)
    return pairs if interleaved else np.concatenate([-b, a], axis=-1)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_gives_the_results(form: str) -> None:
    (model, y), interleaved, rotated = FORMS[form]
    found = found_in(model, y)
    assert found is not None
    assert (found.x.name, found.interleaved, found.rotated) == ("x", interleaved, rotated)
    feeds = feeds_of(model)
    x = feeds["x"][..., :rotated]
    cos, sin = (
        np.tile(table.values, rotated // table.shape[-1]) for table in (found.cos, found.sin)
    )
    place = [value.name for value in model.graph.output].index(y)
    expected = run(model, feeds)[place]
    np.testing.assert_allclose(x * cos + turned(x, interleaved) * sin, expected, atol=1e-6)


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_the_report_says_what_was_recognized(form: str, precision: str) -> None:
    (model, _), interleaved, rotated = FORMS[form]
    report = onnxbolt.optimize(model, precision=precision, archs=("sm_90a",), library=False)
    pairs = "neighbours" if interleaved else "halves"
    assert [refusal.reason for refusal in report.refusals if "rotary" in refusal.reason] == [
        f"a rotary embedding is in no kernel: {pairs}, {rotated} elements of a head"
    ]
    assert report.passed


def _other_table(net: Net, x: str, width: int) -> str:
    return net.node("Concat", cut(net, x, width // 2, width), cut(net, x, 0, width // 2), axis=-1)


def _unequal_parts(net: Net, x: str, width: int) -> str:
    a, b = cut(net, x, 0, width // 4), cut(net, x, width // 4, width)
    return net.node("Concat", net.node("Neg", b), a, axis=-1)


@pytest.mark.parametrize(
    "made",
    [summed(_other_table), summed(_unequal_parts), written_out(crossed=False)],
    ids=["no sign", "unequal parts", "not crossed"],
)
def test_others_are_no_rotations(made: tuple[onnx.ModelProto, str]) -> None:
    assert found_in(*made) is None


@pytest.mark.parametrize(("domain", "interleaved"), [("", 0), ("", 1), (CONTRIB, 0), (CONTRIB, 1)])
def test_the_operators_are_rotations(domain: str, interleaved: int) -> None:
    net = Net({"x": (B, H, S, D)}, opset=23)
    cos, sin = (net.normal(S, D // 2) for _ in range(2))
    positions = net.const(np.tile(np.arange(S), (B, 1)), np.int64)
    operands = (positions, cos, sin) if domain else (cos, sin, positions)
    y = net.node("RotaryEmbedding", "x", *operands, domain=domain, interleaved=interleaved)
    graph = helper.make_graph(net.nodes, "net", net.inputs, [], net.initializers)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    values = import_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    (node,) = (node for node in values.nodes if node.outputs[0].name == y)
    found = rotation(node)
    assert found is not None
    assert (found.cos.name, found.sin.name) == (cos, sin)
    assert (found.interleaved, found.rotated) == (bool(interleaved), None)
