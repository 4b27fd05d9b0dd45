"""Precision behind the last product: what makes boxes and scores stays in fp32. What kernels
compute in fp32 anyway, what is large, and what something averages later does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike
from onnx.reference import ReferenceEvaluator

from onnxbolt.options import Options
from onnxbolt.precision import answers
from onnxbolt.tune.subject import Subject
from tests.test_precision import converted, model_of, run

# a detector of 4 x 4 cells with 2 boxes each: offsets and sizes relative to constants, and scores
SIGNATURE = "(float[1,8,4,4] x) => (float[1,32,4] boxes, float[1,32,2] scores)"
DETECTOR = """raw = Conv<pads=[1, 1, 1, 1]>(x, w, b) last = Transpose<perm=[0, 2, 3, 1]>(raw)
    rows = Reshape(last, flat) offsets, sizes, logits = Split<axis=2>(rows, parts)
    scaled = Mul(offsets, tenth) moved = Mul(scaled, extents) centres = Add(moved, grid)
    grown = Mul(sizes, fifth) factors = Exp(grown) sides = Mul(factors, extents)
    boxes = Concat<axis=2>(centres, sides) scores = Softmax<axis=2>(logits)"""
TOKENS = "(float[1,32,8] x, float[1,32,8] other) => (float[1,32,8] y)"
IMAGES = "(float[1,8,4,4] x, float[1,8,4,4] other) => (float[1,8,4,4] y)"


def detector() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights: dict[str, ArrayLike] = {
        "w": rng.standard_normal((12, 8, 3, 3)).astype(np.float32) / 8,
        "b": rng.standard_normal(12).astype(np.float32),
        "flat": np.array([1, 32, 6]),
        "parts": np.array([2, 2, 2]),
        "tenth": np.float32(0.1),
        "fifth": np.float32(0.2),
        "extents": rng.uniform(0.02, 0.05, (1, 32, 2)).astype(np.float32),
        "grid": rng.uniform(0.5, 1, (1, 32, 2)).astype(np.float32),
    }
    return model_of(SIGNATURE, DETECTOR, weights)


def kept(model: onnx.ModelProto, precision: str = "fp16") -> list[str]:
    """The outputs of the nodes that stay in fp32 because of what they make."""
    _, found = converted(model, precision)
    return [each.node.split("_", 1)[1] for each in found if each.reason == answers.REASON]


def kept_of(signature: str, body: str) -> list[str]:
    weights: dict[str, ArrayLike] = {
        "w": np.ones((8, 8), np.float32),
        "kernel": np.ones((8, 8, 1, 1), np.float32),
        "vector": np.ones(8, np.float32),
        "factor": np.float32(0.5),
        "grid": np.ones((1, 32, 8), np.float32),
        "axis": np.array([1]),
    }
    used = {name: value for name, value in weights.items() if name in body}
    return kept(model_of(signature, body, used))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_boxes_and_scores_are_made_in_fp32(precision: str) -> None:
    found = kept(detector(), precision)
    assert {"scaled", "moved", "centres", "grown", "scores"} <= set(found)
    assert "offsets" not in found  # it only moves the product's results


def test_places_and_scores_have_more_than_11_bits() -> None:
    """The reference evaluator rounds at each operator, as a GPU does; ONNX Runtime's CPU provider
    has no such kernels and computes whole chains in fp32."""
    model = detector()
    x = np.random.default_rng(1).standard_normal((1, 8, 4, 4)).astype(np.float32)
    rounded = ReferenceEvaluator(converted(model)[0]).run(None, {"x": x})
    boxes, scores = (np.asarray(each) for each in rounded)
    places, certain = run(model, {"x": x})
    assert np.abs(boxes - places)[..., :2].max() < 1e-5  # fp16's numbers below 1 lie 4.9e-4 apart
    assert not np.array_equal(scores, scores.astype(np.float16).astype(np.float32))
    assert np.abs(scores - certain).max() < 2e-3


def test_a_grid_stays_fp32_where_a_kernel_could_add_it() -> None:
    """The kernel would write the sum in fp16."""
    assert kept_of(TOKENS, "h = MatMul(x, w) y = Add(h, grid)") == ["y"]


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        pytest.param(
            TOKENS,
            "h = MatMul(x, w) i = Add(h, vector) j = Add(i, other) y = Sigmoid(j)",
            id="steps",
        ),
        pytest.param(IMAGES, "h = Conv(x, kernel) i = Add(h, h) y = Sigmoid(i)", id="images"),
        pytest.param(
            TOKENS, "h = MatMul(x, w) i = Mul(h, h) j = Softmax(i) y = MatMul(j, w)", id="product"
        ),
        pytest.param(TOKENS, "h = Mul(x, factor) y = Sigmoid(h)", id="no product in front"),
    ],
)
def test_what_stays_16_bits(signature: str, body: str) -> None:
    assert kept_of(signature, body) == []


def test_what_is_averaged_later_stays_16_bits() -> None:
    """Embeddings are means of tokens: the product with a mask rounds each of them apart."""
    body = """h = MatMul(x, w) i = Softmax(h) j = Mul(i, other)
        k = ReduceSum(j, axis) y = Mul(k, factor)"""
    signature = "(float[1,32,8] x, float[1,32,1] other) => (float[1,1,8] y)"
    assert kept_of(signature, body) == ["y"]


def test_boxes_of_regions_stay_fp32_in_front_of_further_products() -> None:
    """Two-stage detectors read features at boxes that they made before."""
    body = """features = Conv(x, kernel) found = Conv(features, kernel)
        rows = Reshape(found, to) offsets = Slice(rows, zero, four, axis)
        places = Add(offsets, half)
        regions = RoiAlign<output_height=2, output_width=2>(features, places, batch)
        y = Conv(regions, kernel)"""
    weights: dict[str, ArrayLike] = {
        "kernel": np.ones((8, 8, 1, 1), np.float32),
        "to": np.array([16, 8]),
        "zero": np.array([0]),
        "four": np.array([4]),
        "axis": np.array([1]),
        "half": np.float32(0.5),
        "batch": np.zeros(16, np.int64),
    }
    model = model_of("(float[1,8,4,4] x) => (float[16,8,2,2] y)", body, weights)
    assert kept(model) == ["places"]


def test_boxes_are_moved_apart_by_class_beyond_fp16() -> None:
    """torchvision suppresses the boxes of all classes at once, moved apart by their labels; the
    arithmetic is in the body of an If."""
    inner = onnx.parser.parse_graph(
        """suppress () => (int64[n,3] chosen) {
            largest = ReduceMax<keepdims=0>(boxes) next = Add(largest, one)
            numbers = Cast<to=1>(labels) shifts = Mul(numbers, next)
            columns = Unsqueeze(shifts, axis)
            apart = Add(boxes, columns) all = Unsqueeze(apart, zero)
            chosen = NonMaxSuppression(all, scores, most, least)
        }"""
    )
    model = model_of(
        """(float[32,4] boxes, int64[32] labels, float[1,1,32] scores, bool go)
            => (int64[n,3] found)""",
        "found = If(go)",
        {
            "one": np.float32(1),
            "axis": np.array([1]),
            "zero": np.array([0]),
            "most": np.array([100]),
            "least": np.array([0.5], np.float32),
        },
    )
    for name in ("then_branch", "else_branch"):
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, inner))
    (_, body), _ = Subject.of(model, Options(precision="fp16")).bodies
    floats = {str(t.dtype) for node in body.graph.nodes for t in node.outputs}
    assert floats == {"float32", "int64"}
