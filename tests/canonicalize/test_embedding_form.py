"""Sums of embeddings whose constant terms are added up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import TensorProto

from onnxbolt.canonicalize.embedding_form import run
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net

BATCH, LENGTH, WIDTH = 3, 5, 8
Build = Callable[[Net], str]


def _net(build: Build, shape: tuple[int | str, ...] = (BATCH, LENGTH)) -> onnx.ModelProto:
    net = Net({"ids": shape}, types={"ids": TensorProto.INT64})
    return net.model(build(net))


def _gathered(net: Net, ids: str, rows: int) -> str:
    return net.node("Gather", net.normal(rows, WIDTH), ids)


def _words(net: Net) -> str:
    return _gathered(net, "ids", 20)


def _segment(net: Net, number: int = 0) -> str:
    """The row of a segment as exporters gather it: from a buffer of equal numbers."""
    buffer = net.const(np.full((1, 16), number), np.int64)
    cut = net.node("GatherElements", buffer, net.const([list(range(LENGTH))], np.int64), axis=1)
    return _gathered(net, net.node("Expand", cut, net.node("Shape", "ids")), 2)


def _positions(net: Net) -> str:
    return net.normal(1, LENGTH, WIDTH)


def _add(net: Net, *terms: str) -> str:
    first, *others = terms
    for term in others:
        first = net.node("Add", first, term)
    return first


def _bert(net: Net) -> str:
    return _add(net, _words(net), _segment(net), _positions(net))


def _bert_last_segment(net: Net) -> str:
    return _add(net, _segment(net, 1), _positions(net), _words(net))


def _from_the_end(net: Net) -> str:
    return _add(net, _words(net), _segment(net, -1), _positions(net))


def _a_term_twice(net: Net) -> str:
    x = net.node("Cast", net.node("Unsqueeze", "ids", net.const([2], np.int64)), to=1)
    return _add(net, _words(net), x, net.node("Add", x, net.normal(WIDTH)))


def _running_positions(net: Net) -> str:
    """Positions that the input decides: the segment's row goes into their table."""
    places = net.node("Clip", "ids", net.const(0, np.int64), net.const(6, np.int64))
    return _add(net, _words(net), _segment(net), _gathered(net, places, 7))


def _two_constants(net: Net) -> str:
    return _add(net, _words(net), net.normal(WIDTH), _positions(net))


def _a_row(net: Net) -> str:
    return _add(net, _words(net), net.normal(WIDTH))


def _for_each_sequence(net: Net) -> str:
    """Positions for each sequence of the batch, as an exporter computes them."""
    return _add(
        net, _words(net), net.const(np.repeat(net.rng.normal(size=(1, LENGTH, WIDTH)), BATCH, 0))
    )


def _for_each_token(net: Net) -> str:
    row = net.rng.normal(size=(1, 1, WIDTH))
    return _add(net, _words(net), net.const(np.broadcast_to(row, (BATCH, LENGTH, WIDTH))))


def _scaled(net: Net) -> str:
    return _add(net, net.node("Mul", _words(net), net.const(WIDTH**0.5)), _positions(net))


def _scaled_twice(net: Net) -> str:
    """Encoder and decoder share a table."""
    table, factor = net.normal(20, WIDTH), net.const(3.0)
    terms = [net.node("Mul", factor, net.node("Gather", table, "ids")) for _ in range(2)]
    return net.node("Mul", *terms)


FORMS: dict[str, tuple[Build, list[str]]] = {
    "BERT": (_bert, ["Gather", "Add"]),
    "BERT, other order": (_bert_last_segment, ["Gather", "Add"]),
    "a segment from the end": (_from_the_end, ["Gather", "Add"]),
    "positions at run time": (_running_positions, ["Clip", "Gather", "Gather", "Add"]),
    "two constants": (_two_constants, ["Gather", "Add"]),
    "a term twice": (_a_term_twice, ["Unsqueeze", "Cast", "Gather", "Add", "Add"]),
    "a row": (_a_row, ["Gather", "Identity"]),
    "the same for each sequence": (_for_each_sequence, ["Gather", "Add"]),
    "the same for each token": (_for_each_token, ["Gather", "Identity"]),
    "scaled": (_scaled, ["Gather", "Add"]),
    "scaled twice": (_scaled_twice, ["Gather", "Gather", "Mul"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_constant_terms_are_one(form: str) -> None:
    build, left = FORMS[form]
    source = _net(build)
    graph = _run(source)
    unread = ("Shape", "Expand", "GatherElements")
    assert sorted(n.op for n in _needed(graph) if n.op not in unread) == sorted(left)
    assert graph.outputs[0].name == source.graph.output[0].name
    _check(source, graph)


def test_constants_have_one_element_where_they_are_the_same() -> None:
    graph = _run(_net(_for_each_sequence))
    (add,) = (node for node in graph.nodes if node.op == "Add")
    assert list(add.inputs[1].shape) == [1, LENGTH, WIDTH]


def _also_a_head(net: Net) -> str:
    """The table is that of a product, too, as of a language model's head."""
    table = net.normal(20, WIDTH)
    x = net.node("Mul", net.node("Gather", table, "ids"), net.const(3.0))
    return net.node("MatMul", x, net.node("Transpose", table, perm=[1, 0]))


def _other_factors(net: Net) -> str:
    table = net.normal(20, WIDTH)
    parts = [net.node("Mul", net.node("Gather", table, "ids"), net.const(n)) for n in (2.0, 3.0)]
    return net.node("Mul", *parts)


@pytest.mark.parametrize("build", [_also_a_head, _other_factors])
def test_tables_with_other_readers_are_not_scaled(build: Build) -> None:
    graph = import_model(_net(build))
    infer(graph)
    assert run(graph) == 0


def test_symbolic_sizes_are_the_same_by_their_names() -> None:
    source = _net(_running_positions, ("batch", LENGTH))
    before = len(source.graph.node)
    graph = _run(source)
    assert len(_needed(graph)) < before
    _check(source, graph)


def _one_term_gives_the_shape(net: Net) -> str:
    """Without the segment's row the sum would have another batch."""
    return _add(
        net,
        net.node("Gather", net.normal(20, WIDTH), net.const([[1, 2, 3, 4, 5]], np.int64)),
        _segment(net),
    )


def _several_segments(net: Net) -> str:
    types = net.node("Clip", "ids", net.const(0, np.int64), net.const(1, np.int64))
    return _add(net, _words(net), _gathered(net, types, 2))


def _no_embedding(net: Net) -> str:
    x = net.node("Cast", net.node("Unsqueeze", "ids", net.const([2], np.int64)), to=1)
    return _add(net, x, net.normal(WIDTH), net.normal(WIDTH))


def _two_segments(net: Net) -> str:
    """Each segment has the sum's shape, but no term would have it without both."""
    x = net.node("Cast", net.node("ReduceMax", "ids"), to=1)
    return _add(net, _segment(net), _segment(net, 1), x)


def _more_axes(net: Net) -> str:
    """The row has an axis that nothing else gives the sum."""
    return _add(net, _words(net), net.normal(1, 1, 1, WIDTH))


def _a_wider_row(net: Net) -> str:
    """The table would get more columns."""
    return _add(net, net.node("Gather", net.normal(20, 1), "ids"), net.normal(WIDTH))


def _growing(net: Net) -> str:
    """The constants' sum would be larger than both."""
    constants = net.normal(BATCH, 1, WIDTH), net.normal(1, LENGTH, WIDTH)
    return _add(net, _words(net), *constants)


def _read_elsewhere(net: Net) -> str:
    """The table has a second reader, and so has the sum of the first two terms."""
    table = net.normal(20, WIDTH)
    words = net.node("Gather", table, "ids")
    return net.node("MatMul", _add(net, words, net.normal(WIDTH)), net.node("Transpose", table))


@pytest.mark.parametrize(
    "build",
    [
        _one_term_gives_the_shape,
        _several_segments,
        _no_embedding,
        _two_segments,
        _more_axes,
        _a_wider_row,
        _growing,
        _read_elsewhere,
    ],
)
def test_other_sums_stay(build: Build) -> None:
    source = _net(build)
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 0
    assert list(export_model(graph).graph.node) == list(source.graph.node)


def test_a_partial_sum_with_another_reader_stays() -> None:
    net = Net({"ids": (BATCH, LENGTH)}, types={"ids": TensorProto.INT64})
    part = _add(net, _words(net), _segment(net))
    total = _add(net, part, _positions(net))
    source = net.model(total, part)
    graph = _run(source)
    assert {part, total} <= {t.name for node in graph.nodes for t in node.outputs}
    _check(source, graph)


def _run(source: onnx.ModelProto) -> gs.Graph:
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 1
    return graph


def _needed(graph: gs.Graph) -> list[gs.Node]:
    """The nodes whose results are read."""
    outputs = {tensor.name for tensor in graph.outputs}
    return [n for n in graph.nodes if any(t.outputs or t.name in outputs for t in n.outputs)]


def _check(source: onnx.ModelProto, graph: gs.Graph) -> None:
    """The same outputs, for indices from the end, too."""
    ids = np.random.default_rng(0).integers(-20, 20, (BATCH, LENGTH))
    feeds = {"ids": np.where(ids < 0, ids, ids % 20)}
    for expected, got in zip(
        _answers(source, feeds), _answers(export_model(graph), feeds), strict=True
    ):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def _answers(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, feeds)
    return outputs
