"""Each promise is broken by a fault of its kind, and stages check theirs while tests run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.restore import restore
from onnxbolt.graph import promises
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.promises import SWITCH, PromiseError, stage
from onnxbolt.graph.shapes import infer
from tests.support import Net, feeds_of, fused, prepare, run


def _graph() -> gs.Graph:
    """A convolution with its activation and another one behind it, imported."""
    net = Net({"x": (1, 8, 6, 4)})
    y = net.conv(net.node("Relu", net.conv("x", 8, 16, 3)), 16, 8)
    graph = import_model(net.model(y))
    infer(graph)
    return graph


def _nothing(graph: gs.Graph) -> None:
    """No fault."""


def _named_twice(graph: gs.Graph) -> None:
    graph.nodes[1].outputs[0].name = graph.nodes[0].outputs[0].name


def _reversed(graph: gs.Graph) -> None:
    graph.nodes.reverse()


def _lost(graph: gs.Graph) -> None:
    graph.nodes.pop()


def _transposed(graph: gs.Graph) -> None:
    tensor = graph.nodes[0].outputs[0]
    tensor.shape = [tensor.shape[0], *tensor.shape[2:], tensor.shape[1]]


def _counted(graph: gs.Graph) -> None:
    graph.nodes[0].outputs[0].dtype = np.dtype(np.int64)


def _other_attribute(graph: gs.Graph) -> None:
    graph.nodes[0].attrs["dilations"] = [2, 2]


def _other_op(graph: gs.Graph) -> None:
    graph.nodes[1].op = "Tanh"


ALL = (*promises.ORDERED, promises.names_keep_their_meaning)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (_nothing, ""),
        (_named_twice, "unique_names"),
        (_reversed, "topological_order"),
        (_lost, "results_are_there"),
        (_transposed, "names_keep_their_meaning"),
        (_counted, "names_keep_their_meaning"),
        (_other_attribute, "origins_are_true"),
        (_other_op, "origins_are_true"),
    ],
)
def test_a_fault_breaks_the_promise_of_its_kind(
    fault: Callable[[gs.Graph], None], broken: str
) -> None:
    faulty = stage(ensures=[promise for promise in ALL if promise.__name__ == broken])(fault)
    others = stage(ensures=[promise for promise in ALL if promise.__name__ != broken])(fault)
    if broken:
        with pytest.raises(PromiseError, match=f"{fault.__name__} ensures {broken}: "):
            faulty(_graph())
    if broken in ("", "names_keep_their_meaning", "origins_are_true", "topological_order"):
        others(_graph())


def test_a_new_type_that_is_a_float_too_keeps_the_meaning() -> None:
    def halved(graph: gs.Graph) -> None:
        graph.nodes[0].outputs[0].dtype = np.dtype(np.float16)

    stage(ensures=promises.KEPT)(halved)(_graph())


def test_what_a_stage_requires_is_checked_before_it_runs() -> None:
    ran: list[gs.Graph] = []

    def run_it(graph: gs.Graph) -> None:
        ran.append(graph)

    graph = _graph()
    _reversed(graph)
    with pytest.raises(PromiseError, match=r"requires topological_order: Conv .* reads"):
        stage(requires=promises.ORDERED)(run_it)(graph)
    assert not ran


def test_stages_check_in_tests_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph()
    _other_attribute(graph)
    with pytest.raises(PromiseError, match=r"canonicalize\.canonicalize requires"):
        canonicalize(graph)
    monkeypatch.delenv(SWITCH)
    canonicalize(graph)


def _values(model: onnx.ModelProto, names: list[str]) -> list[np.ndarray]:
    """The values of tensors of the model, for inputs that are always the same."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return run(exposed, feeds_of(model))


def test_stages_keep_the_values_of_names() -> None:
    """By a run: what is left of the source's tensors has the values that it had."""
    net = Net({"x": (1, 8, 6, 4)})
    scaled = net.batchnorm(net.conv("x", 8, 16, 3), 16)
    wide = net.node("Concat", net.node("Relu", scaled), net.conv("x", 8, 16, 3), axis=1)
    wide = net.node("Softmax", wide, axis=1)
    model = net.model(net.node("Sigmoid", net.conv(wide, 32, 8)))
    graph = prepare(model)
    restore(graph)
    for made, least in ((export_model(graph), 4), (fused(model), 1)):
        written = {name for node in made.graph.node for name in node.output}
        left = sorted(written & graph.source_tensors)
        assert len(left) >= least
        for expected, got in zip(_values(model, left), _values(made, left), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
