from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxbolt.canonicalize.scale_shift import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged

CONV = {"x": (2, 4, 5, 5)}, {"y": (2, 6, "p", "q")}
PRODUCT = {"x": (2, 5, 4)}, {"y": (2, 5, 6)}


@pytest.mark.parametrize("inputs", ["h c", "c h"])
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1)])
def test_after_conv(op: str, inputs: str, shape: tuple[int, ...]) -> None:
    source = model(
        [("Conv", "x w b", "h"), (op, inputs, "y")],
        *CONV,
        {"w": random(6, 4, 3, 3), "b": random(6, seed=2), "c": random(*shape, seed=1) + 3},
    )
    if (op, inputs) == ("Div", "c h"):
        unchanged(source, run)
    else:
        assert operators(applied(source, run, 1)) == ["Conv"]


def test_a_shift_gives_a_convolution_its_bias() -> None:
    source = model(
        [("Conv", "x w", "h"), ("Add", "h c", "y")],
        *CONV,
        {"w": random(6, 4, 3, 3), "c": random(6, 1, 1)},
    )
    graph = applied(source, run, 1)
    assert graph.nodes[0].inputs[1].name == "w"
    assert graph.nodes[0].inputs[2].shape == (6,)


@pytest.mark.parametrize("shape", [(), (6,), (1, 6), (1, 1, 6)])
def test_a_scale_after_a_product(shape: tuple[int, ...]) -> None:
    source = model(
        [("MatMul", "x w", "h"), ("Mul", "h c", "y")],
        *PRODUCT,
        {"w": random(4, 6), "c": random(*shape)},
    )
    assert operators(applied(source, run, 1)) == ["MatMul"]


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("Mul", "h c"), ("Div", "h c"), ("Add", "c h"), ("Sub", "h c"), ("Sub", "c h")],
)
def test_after_product_and_bias(op: str, inputs: str) -> None:
    source = model(
        [("MatMul", "x w", "p"), ("Add", "b p", "h"), (op, inputs, "y")],
        *PRODUCT,
        {"w": random(4, 6), "b": random(6, seed=1), "c": random(6, seed=2) + 3},
    )
    graph = applied(source, run, 1)
    assert operators(graph) == ["MatMul", "Add"]
    scaled = (op, inputs) != ("Add", "c h") and (op, inputs) != ("Sub", "h c")
    assert (graph.nodes[0].outputs[0].name == "p") == (not scaled)


def test_constant_minus_product_is_a_product_and_a_shift() -> None:
    source = model(
        [("MatMul", "x w", "h"), ("Sub", "c h", "y")], *PRODUCT, {"w": random(4, 6), "c": random(6)}
    )
    assert operators(applied(source, run, 1)) == ["MatMul", "Add"]


def test_frozen_batch_normalization() -> None:
    source = model(
        [("Conv", "x w", "h"), ("Mul", "h s", "z"), ("Add", "z t", "y")],
        *CONV,
        {"w": random(6, 4, 3, 3), "s": random(1, 6, 1, 1, seed=1), "t": random(1, 6, 1, 1, seed=2)},
    )
    assert operators(applied(source, run, 2)) == ["Conv"]


def test_fp16() -> None:
    source = model(
        [("Conv", "x w b", "h"), ("Mul", "h c", "y")],
        *CONV,
        {"w": random(6, 4, 3, 3), "b": random(6), "c": random(6, 1, 1)},
        dtype=TensorProto.FLOAT16,
    )
    assert applied(source, run, 1).nodes[0].inputs[1].dtype == np.float16
    constants = {"w": random(6, 4, 3, 3) + 9, "b": random(6), "c": np.array(60000.0)}
    unchanged(
        model(
            [("Conv", "x w b", "h"), ("Mul", "h c", "y")],
            *CONV,
            constants,
            dtype=TensorProto.FLOAT16,
        ),
        run,
    )


def test_a_bias_after_a_product_is_the_form_wanted() -> None:
    unchanged(
        model(
            [("MatMul", "x w", "h"), ("Add", "h c", "y")],
            *PRODUCT,
            {"w": random(4, 6), "c": random(6)},
        ),
        run,
    )


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 1, 1, 1), (1, 6, 3, 1)])
def test_constants_along_other_axes_stay(shape: tuple[int, ...]) -> None:
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y")],
            *CONV,
            {"w": random(6, 4, 3, 3), "c": random(*shape)},
        ),
        run,
    )


@pytest.mark.parametrize("shape", [(5, 1), (2, 1, 1), (1, 1, 1, 6)])
def test_constants_along_rows_stay(shape: tuple[int, ...]) -> None:
    unchanged(
        model(
            [("MatMul", "x w", "h"), ("Mul", "h c", "y")],
            PRODUCT[0],
            {"y": ("a",) * max(3, len(shape))},
            {"w": random(4, 6), "c": random(*shape)},
        ),
        run,
    )


def test_widening_constants_stay() -> None:
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y")],
            *CONV,
            {"w": random(1, 4, 3, 3), "c": random(6, 1, 1)},
        ),
        run,
    )


def test_other_readers_stay() -> None:
    constants = {"w": random(6, 4, 3, 3), "c": random(6, 1, 1)}
    shape = (2, 6, "p", "q")
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y"), ("Relu", "h", "z")],
            CONV[0],
            {"y": shape, "z": shape},
            constants,
        ),
        run,
    )
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y")],
            CONV[0],
            {"y": shape, "h": shape},
            constants,
        ),
        run,
    )


def test_computed_operands_and_weights_stay() -> None:
    shape = (2, 6, "p", "q")
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y")],
            {**CONV[0], "c": (6, 1, 1)},
            {"y": shape},
            {"w": random(6, 4, 3, 3)},
        ),
        run,
    )
    unchanged(
        model(
            [("Conv", "x w", "h"), ("Mul", "h c", "y")],
            {**CONV[0], "w": (6, 4, 3, 3)},
            {"y": shape},
            {"c": random(6, 1, 1)},
        ),
        run,
    )


def test_division_by_zero_stays() -> None:
    graph = model(
        [("MatMul", "x w", "h"), ("Div", "h c", "y")],
        *PRODUCT,
        {"w": random(4, 6), "c": np.zeros(6)},
    )
    unchanged(graph, run)
