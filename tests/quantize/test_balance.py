"""Linear pairs are balanced by powers of two, which leave the model of floats as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from onnxbolt.dtypes import DType
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.quantize import balance
from onnxbolt.quantize.placement import Placement
from onnxbolt.verify.feeds import random_feeds
from onnxbolt.verify.session import CPU, Runner
from tests.support import Net


def _norm(net: Net) -> str:
    return net.node("LayerNormalization", "x", net.normal(16), net.normal(16), axis=-1)


def _affine(net: Net) -> str:
    scaled = net.node("Mul", net.node("Tanh", "x"), net.normal(16))
    return net.node("Add", net.normal(16), scaled)


def _linear(net: Net) -> str:
    return net.node("Relu", net.linear("x", 16, 16))


def _model(between: Callable[[Net], str]) -> ModelProto:
    net = Net({"x": (4, 5, 16)}, seed=3)
    x = between(net)
    return net.model(net.node("Mul", net.linear(x, 16, 32), net.linear(x, 16, 32)))


def _placed(model: ModelProto) -> Placement:
    graph = import_model(model)
    infer(graph)
    return Placement(graph, DType.I8)


@pytest.mark.parametrize("between", [_norm, _affine, _linear])
def test_results_stay(between: Callable[[Net], str]) -> None:
    model = _model(between)
    placement = _placed(model)
    ((name, pair),) = balance.pairs(placement).items()
    powers = {name: tuple(int(each) for each in np.arange(16) % 7 - 3)}
    balance.apply(placement.graph, pair, powers)
    feeds = random_feeds(model)
    before, after = (
        Runner(each, CPU).run(feeds, [name, model.graph.output[0].name])
        for each in (model, export_model(placement.graph))
    )
    np.testing.assert_allclose(after.pop(name), before.pop(name) / np.exp2(powers[name]), rtol=1e-6)
    (was,), (found,) = before.values(), after.values()
    np.testing.assert_allclose(found, was, rtol=1e-4, atol=1e-5)


def test_what_others_read_stays() -> None:
    net = Net({"x": (4, 5, 16)}, seed=3)
    x = _norm(net)
    model = net.model(net.node("Add", net.linear(x, 16, 16), x))
    assert balance.pairs(_placed(model)) == {}


def test_factors_even_out_both_sides() -> None:
    model = _model(_norm)
    (pair,) = balance.pairs(_placed(model)).values()
    rows = np.max([np.abs(p.weight.values).max(axis=1) for p in pair.products], axis=0)
    largest = np.ones(16)
    largest[3], largest[5] = 256.0, 0.0
    powers = balance.exponents(pair, largest * rows)
    assert powers[3] == 4  # half of the distance, on a scale of powers
    assert set(powers[:3] + powers[4:]) == {0}
