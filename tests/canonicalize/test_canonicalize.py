from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxbolt.canonicalize import PASSES, canonicalize
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from tests.canonicalize.compare import check_same_answers, model, operators, random
from tests.conftest import ZOO
from tests.graph.planted import everything
from tests.zoo.materialize import random_inputs

GRAPHS = sorted(path.stem for path in ZOO.glob("*.onnx"))


def test_passes_build_on_each_other() -> None:
    nodes = [
        ("Identity", "w", "w2"),
        ("Mul", "w2 two", "w3"),
        ("Reshape", "x rows", "r"),
        ("Gemm", "r w3 b", "h", {"transB": 1}),
        ("Mul", "h c", "g"),
        ("Sigmoid", "g", "s"),
        ("Mul", "g s", "a"),
        ("Reshape", "a back", "y"),
    ]
    constants = {
        "w": random(6, 4),
        "b": random(6),
        "two": np.array(2.0),
        "c": np.array(0.5),
        "rows": np.array([-1, 4]),
        "back": np.array([-1, 5, 6]),
    }
    source = model(nodes, {"x": ("n", 5, 4)}, {"y": ("n", 5, 6)}, constants)
    graph = import_model(source)
    log = canonicalize(graph)
    assert operators(graph) == ["MatMul", "Add", "onnxbolt.internal.Silu"]
    assert [line.partition(":")[0] for line in log[:6]] == [
        "noops",
        "constant_fold",
        "gemm_form",
        "scale_shift",
        "activations",
        "flatten",
    ]
    check_same_answers(source, graph)


def test_a_second_time_there_is_nothing_to_do(zoo: Callable[[str], onnx.ModelProto]) -> None:
    graph = import_model(zoo("dcnv2.ts"))
    assert canonicalize(graph)
    assert canonicalize(graph) == []


def test_what_no_pass_knows_stays() -> None:
    source = everything()
    graph = import_model(source)
    canonicalize(graph)
    kept = {node.op_type for node in export_model(graph).graph.node}
    assert {"If", "Twice", "DequantizeLinear", "ReduceSum"} <= kept
    onnx.checker.check_model(export_model(graph))


def test_every_pass_has_a_reason_for_its_place() -> None:
    assert len({run.__module__ for run, _ in PASSES}) == len(PASSES)
    assert all(effect for _, effect in PASSES)


@pytest.mark.zoo
@pytest.mark.parametrize("name", GRAPHS)
def test_the_zoo_keeps_its_answers(name: str, zoo: Callable[[str], onnx.ModelProto]) -> None:
    source = zoo(name)
    graph = import_model(source)
    canonicalize(graph)
    check_same_answers(source, graph, random_inputs(source, batch=2))
