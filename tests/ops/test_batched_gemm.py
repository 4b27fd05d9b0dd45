"""Products with a matrix of its own for each batch: which are recognized, what their nodes compute,
and which kernels serve them; no plan has them before they have run on a GPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxbolt import families
from onnxbolt.archs import get
from onnxbolt.canonicalize import canonicalize
from onnxbolt.dtypes import DType
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match import preparation
from onnxbolt.ops import OPS
from onnxbolt.ops.base import Signature
from onnxbolt.opspec import OpSpec
from onnxbolt.plan.problems import problem_of
from onnxbolt.problems import BatchedGemmProblem, GemmProblem
from tests.support import Net, assert_same, fused, matched, ops, run

LIMITS = {"keep": 1e-5, "fp16": 3e-3, "bf16": 2e-2}
PROBLEM = BatchedGemmProblem(4, 100, 4096, 256, DType.F16, DType.F16, (), 4096, 256)


def masks(batch: int | str = "batch", equation: str = "bqc, bchw -> bqhw") -> onnx.ModelProto:
    """Queries by the features of their image, as Mask2Former's."""
    net = Net({"q": (batch, 10, 32), "x": (batch, 16, 6, 4)})
    queries, features = net.linear("q", 32, 32), net.conv("x", 16, 32)
    return net.model(net.node("Einsum", queries, features, equation=equation))


def products(first: int | str, second: int | str) -> onnx.ModelProto:
    net = Net({"x": (first, 9, 16), "u": (second, 5, 16)})
    return net.model(net.node("MatMul", "x", net.node("Transpose", "u", perm=[0, 2, 1])))


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("batch", ["batch", 3])
def test_masks_are_a_product_for_each_image(batch: int | str, precision: str) -> None:
    optimized = assert_same(masks(batch), LIMITS[precision], precision, arch=90)
    found = ops(optimized)
    assert sum(name.startswith("FusedBatchedGemm_") for name in found) == 1
    assert not {"Einsum", "MatMul", "Transpose"} & set(found)  # features are read as NHWC


@pytest.mark.parametrize(
    ("first", "second", "given"),
    [("a", "b", (3, 3)), ("a", "b", (1, 3)), ("a", "b", (3, 1)), (2, 2, (2, 2)), (1, 2, (1, 2))],
)
def test_either_side_may_serve_all_batches(
    first: int | str, second: int | str, given: tuple[int, int]
) -> None:
    model = products(first, second)
    optimized = fused(model, arch=90)
    assert any(name.startswith("FusedBatchedGemm_") for name in ops(optimized))
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((given[0], 9, 16)).astype(np.float32),
        "u": rng.standard_normal((given[1], 5, 16)).astype(np.float32),
    }
    for expected, got in zip(run(model, feeds), run(optimized, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_steps_follow() -> None:
    net = Net({"x": ("n", 9, 16), "u": ("n", 5, 16), "residual": ("n", 9, 5)})
    y = net.node("MatMul", "x", net.node("Transpose", "u", perm=[0, 2, 1]))
    y = net.node("Relu", net.node("Add", net.node("Mul", y, net.const(0.25)), net.normal(5)))
    optimized = assert_same(net.model(net.node("Add", y, "residual")), arch=90)
    assert ops(optimized) == ["FusedBatchedGemm_Scale_Bias_Relu_Add_f32"]


@pytest.mark.parametrize(
    "equation", ["bqc, bchw -> qbhw", "bqc, bhwc -> bqhw", "qbc, bchw -> bqhw", "bqc, bchw -> bqh"]
)
def test_other_einsums_stay(equation: str) -> None:
    net = Net({"q": (4, 4, 4), "x": (4, 4, 4, 4)})
    model = net.model(net.node("Einsum", "q", "x", equation=equation))
    assert ops(fused(model, arch=90)) == ["Einsum"]


@pytest.mark.parametrize("depths", [(1, 16), (16, 1), ("k", "l")])
def test_an_einsum_that_may_repeat_a_factor_stays(depths: tuple[int | str, int | str]) -> None:
    first, second = depths
    net = Net({"q": (2, 8, first), "x": (2, second, 4, 6)})
    model = net.model(net.node("Einsum", "q", "x", equation="bqc, bchw -> bqhw"))
    optimized = fused(model, arch=90)
    assert ops(optimized) == ["Einsum"]
    feeds = {"q": np.ones((2, 8, 1), np.float32), "x": np.ones((2, 16, 4, 6), np.float32)}
    if depths != (16, 1):
        for expected, got in zip(run(model, feeds), run(optimized, feeds), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_what_no_kernel_takes_is_taken_back() -> None:
    graph = import_model(masks())
    infer(graph)
    canonicalize(graph)
    assert "products: 1 (Einsums as MatMul)" in preparation.prepare(graph)
    assert preparation.restore(graph) == 1
    assert "Transpose" not in [node.op for node in graph.nodes]


def test_attention_is_left_to_its_op() -> None:
    net = Net({"x": (2, 9, 16), "y": (2, 9, 16), "z": (2, 9, 16)})
    scores = net.node("MatMul", "x", net.node("Transpose", "y", perm=[0, 2, 1]))
    weights = net.node("Softmax", net.node("Mul", scores, net.const(0.25)))
    candidates, _ = matched(net.model(net.node("MatMul", weights, "z")))
    assert [each.anchor.op.name for each in candidates] == ["attention"]


def test_the_problem_has_the_batches() -> None:
    ((found,), _) = matched(products(6, 6))
    problem = problem_of(found, None)
    assert problem == BatchedGemmProblem(6, 9, 5, 16, DType.F32, DType.F32, (), 5, 16)
    assert problem.flops == 2 * 6 * 9 * 5 * 16
    assert problem.bytes_moved == 4 * 6 * (9 * 16 + 5 * 16 + 9 * 5)


def test_kernels_wait_for_the_tensors_that_they_read() -> None:
    found = families.candidates(PROBLEM, get(90))
    assert found
    assert not any(config.family.waits for config in found)


def test_small_batches_fill_no_tiles_together() -> None:
    """A tile holds rows of one batch alone."""
    tiny = BatchedGemmProblem(512, 1, 64, 64, DType.F16, DType.F16, (), 64, 64)
    together = GemmProblem(512, 64, 64, DType.F16, DType.F16, ())
    assert (tiny.row_tiles(128), together.row_tiles(128)) == (512, 4)
    assert tiny.onnxruntime_us(get(90)) > together.onnxruntime_us(get(90))


def test_each_batch_has_weights_of_its_own() -> None:
    signature = Signature(OPS["batched_gemm"], DType.F32)
    spec = OpSpec.of(signature, "FusedBatchedGemm_f32")
    positions, weights = spec.products([6, 9, 5], [[6, 9, 16], [6, 5, 16]], {})
    assert (positions, weights) == ([9], 6 * 5 * 16)
