"""Products of two tensors: which are recognized, what their nodes compute, and which kernels serve
them; products that no kernel takes stay as they were."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxbolt import families
from onnxbolt.archs import get
from onnxbolt.candidates import Candidate
from onnxbolt.canonicalize import canonicalize
from onnxbolt.dtypes import DType
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match import preparation
from onnxbolt.plan.problems import problem_of
from onnxbolt.problems import MatmulProblem
from tests.support import Net, assert_same, feeds_of, fused, matched, ops, run

LIMITS = {"keep": 1e-5, "fp16": 3e-3, "bf16": 2e-2}


def similarity(first: int | str = "images", second: int | str = "texts") -> tuple[Net, str]:
    """Embeddings of 64 values, each compared with each."""
    net = Net({"x": (first, 64), "y": (second, 64)})
    return net, net.node("MatMul", "x", net.node("Transpose", "y", perm=[1, 0]))


def correlation(height: int | str = "h", width: int | str = "w") -> onnx.ModelProto:
    """Pixels of two images, each compared with each, as in RAFT."""
    net = Net({"x": (1, 16, height, width), "y": (1, 16, height, width)})
    shape = net.const([1, 32, -1], np.int64)
    first, second = (net.node("Reshape", net.conv(image, 16, 32), shape) for image in "xy")
    rows = net.node("Transpose", first, perm=[0, 2, 1])
    return net.model(net.node("MatMul", rows, second))


def only(model: onnx.ModelProto) -> Candidate:
    (found,) = [each for each in matched(model)[0] if each.anchor.op.name == "matmul"]
    return found


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("second", ["texts", 24])
def test_similarities_are_a_gemm_by_rows(second: int | str, precision: str) -> None:
    net, y = similarity(second=second)
    optimized = assert_same(net.model(y), LIMITS[precision], precision, arch=90)
    names = [name for name in ops(optimized) if name != "Cast"]
    assert [name.startswith("FusedGemm_") for name in names] == [True], names


@pytest.mark.parametrize("precision", LIMITS)
def test_correlations_read_both_images_as_nhwc(precision: str) -> None:
    optimized = assert_same(correlation(), LIMITS[precision], precision, arch=90)
    moving = [name for name in ops(optimized) if name.startswith(("NhwcToNchw", "Transpose"))]
    assert moving == []
    assert any(name.startswith("FusedGemm_") for name in ops(optimized))


def test_the_second_operand_serves_all_batches() -> None:
    net = Net({"x": ("batch", 3, 20, 32), "y": (1, 1, "n", 32)})
    y = net.node("MatMul", "x", net.node("Transpose", "y", perm=[0, 1, 3, 2]))
    assert any(name.startswith("FusedGemm_") for name in ops(assert_same(net.model(y), arch=90)))


def test_steps_follow_where_the_number_of_columns_is_known() -> None:
    net, y = similarity(second=24)
    net.inputs += Net({"residual": ("images", 24)}).inputs
    y = net.node("Relu", net.node("Add", net.node("Mul", y, net.const(0.125)), net.normal(24)))
    y = net.node("Add", y, "residual")
    assert only(net.model(y)).rule == "matmul+Scale+Bias+Relu+Add"
    assert_same(net.model(y), arch=90)
    net, y = similarity()
    y = net.node("Mul", net.node("Relu", y), net.const(0.125))
    assert only(net.model(y)).rule == "matmul+Relu"
    assert_same(net.model(y), arch=90)


def test_columns_of_an_unknown_number_are_written_one_by_one() -> None:
    problem = problem_of(only(similarity()[0].model("matmul1")), None)
    assert isinstance(problem, MatmulProblem)
    assert problem.divisors == (1, 64)
    found = families.candidates(problem, get(90))
    assert {config.family.name for config in found} == {"gemm_2x"}
    assert {config.named()["access_n"] for config in found} == {1}


@pytest.mark.parametrize("number", [80, 90])
def test_no_kernel_reads_rows_before_the_kernel_that_writes_them_ends(number: int) -> None:
    problem = MatmulProblem(256, 256, 64, DType.F16, DType.F16, (), 256, 64)
    found = families.candidates(problem, get(number))
    assert found
    assert not any(config.family.waits for config in found)


def attention(net: Net, q: str, k: str, v: str) -> str:
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]))
    return net.node("MatMul", net.node("Softmax", net.node("Mul", scores, net.const(0.25))), v)


def test_other_products_stay_as_they_are() -> None:
    net = Net({"x": (1, 9, 16), "y": (1, 9, 16), "z": (1, 9, 16)})
    left = attention(net, "x", "y", "z")
    candidates, _ = matched(net.model(left))
    assert [each.anchor.op.name for each in candidates] == ["attention"]
    net = Net({"x": (1, 9, 16), "y": (1, 16, 9), "z": (2, 3, 9, 16), "u": (2, 3, 5, 16)})
    batches = net.node("MatMul", "z", net.node("Transpose", "u", perm=[0, 1, 3, 2]))
    candidates, refusals = matched(net.model(net.node("MatMul", "x", "y"), batches))
    assert candidates == []
    assert {each.reason for each in refusals} == {"both operands are computed at run time"}


@pytest.mark.parametrize("model", [correlation(), correlation(4, 6)])
def test_products_without_a_kernel_are_taken_back(model: onnx.ModelProto) -> None:
    graph = import_model(model)
    infer(graph)
    canonicalize(graph)
    before = [(node.op, [tensor.name for tensor in node.inputs]) for node in graph.nodes]
    assert preparation.prepare(graph) == ["products: 1 (second operands read by rows)"]
    assert [node.op for node in graph.nodes].count("Squeeze") == 1
    assert preparation.restore(graph) == 1
    assert [(node.op, [t.name for t in node.inputs]) for node in graph.nodes] == before


@pytest.mark.parametrize("seed", range(12))
def test_random_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, 40, 3))
    batches = [int(size) for size in rng.integers(1, 4, rng.integers(0, 3))]
    ones = [1] * int(rng.integers(0, len(batches) + 1))
    given, wanted = ([*batches, m, k], [*ones, n, k])
    symbolic = [f"s{i}" if rng.random() < 0.5 else size for i, size in enumerate(given)]
    rows = [*ones, "n" if rng.random() < 0.5 else n, k]
    net = Net({"x": symbolic, "y": rows}, seed=seed)
    order = [*range(len(ones)), len(ones) + 1, len(ones)]
    y = net.node("MatMul", "x", net.node("Transpose", net.node("Relu", "y"), perm=order))
    if rng.random() < 0.5:
        y = net.node("Mul", y, net.const(0.5))
    if rng.random() < 0.5:
        y = net.node("Sigmoid", y)
    model = net.model(y)
    optimized = fused(model, arch=90)
    assert any(name.startswith("FusedGemm_") for name in ops(optimized))
    feeds = {"x": rng.standard_normal(given), "y": rng.standard_normal(wanted)}
    feeds = {name: values.astype(np.float32) for name, values in feeds.items()}
    assert set(feeds) == set(feeds_of(model))
    for expected, got in zip(run(model, feeds), run(optimized, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
