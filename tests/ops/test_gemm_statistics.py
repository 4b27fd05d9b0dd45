"""Function bodies of products that write statistics of rows, and of products that read them: a norm
between two products, computed by both of these alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import FOLDED_NORMS, Step
from onnxbolt.ops import named
from onnxbolt.ops.base import Signature
from onnxbolt.ops.functions import DOMAIN, build
from onnxbolt.problems.gemm_moments import PART

EPSILON = 1e-3
DEPTH, WIDTH, COLUMNS = 24, 3 * PART, 40


def _run(
    signature: Signature, feeds: dict[str, np.ndarray], opset: int = 17
) -> dict[str, np.ndarray]:
    function = build(signature, opset)
    graph = helper.make_graph(
        [helper.make_node(function.name, list(feeds), list(function.output), domain=DOMAIN)],
        "graph",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in function.output],
    )
    model = helper.make_model(
        graph,
        functions=[function],
        ir_version=8,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
    )
    for output, kind in zip(
        model.graph.output, (signature.dtype.onnx, DType.F32.onnx), strict=False
    ):
        output.type.tensor_type.elem_type = kind
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(function.output, session.run(None, feeds), strict=True))


def _signature(dtype: DType, *steps: Step) -> Signature:
    return Signature(named("gemm"), dtype, 0, steps)


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize("leading", [(5,), (2, 3), (0, 3)])
@pytest.mark.parametrize(("dtype", "limit"), [(DType.F16, 1e-3), (DType.F32, 1e-5)])
def test_statistics_are_those_of_the_result(
    dtype: DType, limit: float, leading: tuple[int, ...], opset: int
) -> None:
    """ONNX Runtime's CPU provider computes fp16 in float32, and leaves out the rounding between."""
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((*leading, DEPTH)).astype(dtype.numpy),
        "weight": random.standard_normal((WIDTH, DEPTH)).astype(dtype.numpy),
        "operand0": random.standard_normal(WIDTH).astype(np.float32) * 4,
    }
    found = _run(_signature(dtype, Step("Bias"), Step("Moments")), feeds, opset)
    rows = int(np.prod(leading))
    parts = found["y"].astype(np.float64).reshape(rows, WIDTH // PART, PART).transpose(1, 0, 2)
    assert found["y"].shape == (*leading, WIDTH)
    assert found["statistics"].shape == (WIDTH // PART, rows, 2)
    assert found["statistics"].dtype == np.float32
    np.testing.assert_allclose(found["statistics"][..., 0], parts.mean(-1), rtol=limit, atol=limit)
    np.testing.assert_allclose(found["statistics"][..., 1], parts.var(-1) * PART, rtol=limit)


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize("step", FOLDED_NORMS)
@pytest.mark.parametrize("leading", [(5,), (2, 3)])
@pytest.mark.parametrize(("dtype", "limit"), [(DType.F16, 2e-3), (DType.F32, 2e-5)])
def test_a_norm_between_two_products(
    dtype: DType, limit: float, leading: tuple[int, ...], step: str, opset: int
) -> None:
    """Rows have means of eight times their deviations: in fp16 the product of rows as they are
    would lose what it is for if it was rounded."""
    random = np.random.default_rng(1)
    x = (random.standard_normal((*leading, WIDTH)) + 8).astype(dtype.numpy)
    weight = (random.standard_normal((COLUMNS, WIDTH)) * WIDTH**-0.5).astype(dtype.numpy)
    parts = x.astype(np.float64).reshape(-1, WIDTH // PART, PART).transpose(1, 0, 2)
    statistics = np.stack((parts.mean(-1), parts.var(-1) * PART), axis=-1).astype(np.float32)
    centered = FOLDED_NORMS[step]
    bias = random.standard_normal(COLUMNS).astype(np.float32)
    vectors = [weight.astype(np.float64).sum(1).astype(np.float32)] * centered + [bias]
    feeds = {"x": x, "weight": weight, "statistics": statistics}
    feeds |= {f"operand{i}": vector for i, vector in enumerate(vectors)}
    steps = Step(step, (EPSILON,)), Step("Bias")
    found = _run(_signature(dtype, *steps), feeds, opset)["y"].astype(np.float64)
    exact = x.astype(np.float64)
    exact -= exact.mean(-1, keepdims=True) * centered
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + EPSILON)
    expected = exact @ weight.T.astype(np.float64) + bias
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


def test_inputs_and_outputs() -> None:
    steps = Step("FoldedLayerNorm", (EPSILON,)), Step("Bias"), Step("Add"), Step("Moments")
    signature = _signature(DType.BF16, *steps)
    function = build(signature, 17)
    operands = [f"operand{i}" for i in range(3)]
    assert list(function.input) == ["x", "weight", "statistics", *operands]
    assert list(function.output) == ["y", "statistics"]
    assert signature.op.letters(signature) == "f"
