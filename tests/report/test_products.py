"""The operators that count as products, and the FLOPs of each."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxbolt import optimize
from onnxbolt.cli import main
from onnxbolt.errors import CoverageError
from onnxbolt.graph.bodies import located
from onnxbolt.report.coverage import coverage, left_out
from onnxbolt.report.products import Product, products

HEADER = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'


def model_of(signature: str, body: str, **shapes: tuple[int, ...]) -> ModelProto:
    """Initializers are drawn; those whose names begin with q are 8-bit, zero points z and scales
    s scalars."""
    model = onnx.parser.parse_model(f"{HEADER} g {signature} {{ {body} }}")
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        kind = {"q": np.uint8, "z": np.uint8}.get(name[0], np.float32)
        model.graph.initializer.append(
            numpy_helper.from_array(np.asarray(rng.standard_normal(shape) / 4).astype(kind), name)
        )
    return model


PRODUCTS = [
    (
        "MatMul",
        "(float[2,3,4] x) => (float[2,3,5] y)",
        "y = MatMul(x, w)",
        {"w": (4, 5)},
        2 * (2 * 3 * 5) * 4,
    ),
    (
        "MatMul",
        "(float[2,3,4] x, float[2,4,5] w) => (float[2,3,5] y)",
        "y = MatMul(x, w)",
        {},
        2 * (2 * 3 * 5) * 4,
    ),
    (
        "MatMul",
        "(float[2,3,4] x) => (float[2,3] y)",
        "y = MatMul(x, w)",
        {"w": (4,)},
        2 * (2 * 3) * 4,
    ),
    (
        "Gemm",
        "(float[3,4] x) => (float[3,5] y)",
        "y = Gemm<transB=1>(x, w)",
        {"w": (5, 4)},
        2 * (3 * 5) * 4,
    ),
    (
        "Conv",
        "(float[2,4,8,8] x) => (float[2,6,8,8] y)",
        "y = Conv<group=2>(x, w)",
        {"w": (6, 2, 1, 1)},
        2 * (2 * 6 * 64) * 2,
    ),
    (
        "ConvTranspose",
        "(float[2,4,8,8] x) => (float[2,6,9,9] y)",
        "y = ConvTranspose(x, w)",
        {"w": (4, 6, 2, 2)},
        2 * (2 * 4 * 64) * (6 * 4),
    ),
    (
        "Einsum",
        "(float[2,3,4] x, float[2,5,4] k) => (float[2,3,5] y)",
        'y = Einsum<equation="bsd,bld->bsl">(x, k)',
        {},
        2 * 2 * 3 * 5 * 4,
    ),
    (
        "QLinearConv",
        "(uint8[2,4,8,8] x) => (uint8[2,6,8,8] y)",
        "y = QLinearConv(x, s, z, qw, s, z, s, z)",
        {"s": (), "z": (), "qw": (6, 4, 1, 1)},
        2 * (2 * 6 * 64) * 4,
    ),
    (
        "QLinearMatMul",
        "(uint8[3,4] x) => (uint8[3,5] y)",
        "y = QLinearMatMul(x, s, z, qw, s, z, s, z)",
        {"s": (), "z": (), "qw": (4, 5)},
        2 * (3 * 5) * 4,
    ),
    (
        "LSTM",
        "(float[7,2,3] x) => (float[7,1,2,5] y)",
        "y = LSTM<hidden_size=5>(x, w, r)",
        {"w": (1, 20, 3), "r": (1, 20, 5)},
        2 * 7 * 2 * (20 * 3 + 20 * 5),
    ),
    (
        "Attention",
        "(float[2,4,7,8] q, float[2,4,9,8] k, float[2,4,9,6] v) => (float[2,4,7,6] y)",
        "y = Attention(q, k, v)",
        {},
        2 * 2 * 4 * 7 * 9 * (8 + 6),
    ),
    (
        "FusedMatMul",
        "(float[3,4] x) => (float[3,5] y)",
        "y = com.microsoft.FusedMatMul<transB=1>(x, w)",
        {"w": (5, 4)},
        2 * (3 * 5) * 4,
    ),
    (
        "Attention",
        "(float[2,7,8] x) => (float[2,7,8] y)",
        "y = com.microsoft.Attention<num_heads=2>(x, w, b)",
        {"w": (8, 24), "b": (24,)},
        2 * (2 * 7 * 8) * 24 + 4 * 7 * (2 * 7 * 8),
    ),
    (
        "MultiHeadAttention",
        "(float[2,7,8] q, float[2,9,8] k, float[2,9,6] v) => (float[2,7,6] y)",
        "y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)",
        {},
        2 * 2 * 7 * 9 * (8 + 6),
    ),
]


@pytest.mark.parametrize(("op", "signature", "body", "shapes", "flops"), PRODUCTS)
def test_flops(
    op: str, signature: str, body: str, shapes: dict[str, tuple[int, ...]], flops: int
) -> None:
    (found,) = products(model_of(signature, body, **shapes), {})
    assert (found.op, found.flops) == (op, flops)


def test_open_dimensions_count_as_one_unless_a_point_tells() -> None:
    model = model_of("(float[n,4] x) => (float[n,5] y)", "y = MatMul(x, w)", w=(4, 5))
    assert [p.flops for point in ({}, {"x": [3, 4]}) for p in products(model, point)] == [
        2 * 5 * 4,
        2 * 3 * 5 * 4,
    ]


@pytest.fixture
def branches() -> ModelProto:
    """One product in the main graph, one of two variables in a branch of an If, three times as
    large."""
    then = (
        "then_branch = t () => (float[6,4] a) { a = MatMul(m, v) }, else_branch = e () =>"
        " (float[2,4] b) { b = Relu(x) }"
    )
    body = f"h = MatMul(x, w) m = Concat<axis=0>(h, h, h) y = If (c) <{then}>"
    return model_of("(float[2,4] x, float[4,4] v, bool c) => (float[r,4] y)", body, w=(4, 4))


def test_products_inside_of_control_flow_count(branches: ModelProto) -> None:
    main_graph, inner = products(branches, {})
    assert (main_graph.body, inner.body) == ("", "then_branch of If y")
    assert inner.flops == 3 * main_graph.flops
    both = {main_graph.node, located(inner.node, inner.body)}
    assert coverage([main_graph, inner], both) == 1
    assert coverage([main_graph, inner], {main_graph.node, inner.node}) == 0.25
    (refusal,) = left_out([main_graph, inner], {main_graph.node}, [])
    assert refusal.reason == "both factors are computed at run time"
    assert refusal.body == inner.body
    inner = replace(inner, left="then_branch of If y, because of something")
    assert coverage([main_graph, inner], both) == 0.25
    (refusal,) = left_out([main_graph, inner], both, [])
    assert refusal.reason == f"inside a body that is not optimized: {inner.left}"


@pytest.mark.parametrize("equation", ["abc->cab", "abc->a"])
def test_an_einsum_of_one_tensor_is_no_product(equation: str) -> None:
    body = f'y = Einsum<equation="{equation}">(x)'
    assert not products(model_of("(float[2,4,6] x) => (float[a,b,c] y)", body), {})


def test_quantized_products_that_matching_does_not_know() -> None:
    product = Product("y", "MatMulNBits", "com.microsoft", 1, weighted=True)
    (refusal,) = left_out([product], set(), [])
    assert refusal.reason == "quantized products stay with ONNX Runtime"
    (refusal,) = left_out([replace(product, op="MatMulInteger", domain="")], set(), [])
    assert refusal.reason == "its scales are computed at run time: quantize it statically"


def test_nothing_fused_is_a_warning_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(
        "(uint8[3,4] x) => (uint8[3,5] y)",
        "y = QLinearMatMul(x, s, z, qw, s, z, s, z)",
        s=(),
        z=(),
        qw=(4, 5),
    )
    with caplog.at_level(logging.WARNING, "onnxbolt"):
        report = optimize(model, library=False, verify=False)
    reason = (
        "QLinearMatMul: its quantized weight has zero points, for which inputs have to be added up"
    )
    assert [record.getMessage() for record in caplog.records] == [f"nothing was fused: {reason}"]
    assert report.coverage == 0
    assert [(refusal.op, refusal.reason) for refusal in report.refusals] == [
        ("QLinearMatMul", reason.partition(": ")[2])
    ]


def test_require_fused(
    branches: ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        CoverageError, match=r"fused nodes do 25\.0% of .*, less than require_fused=30"
    ) as error:
        optimize(branches, tmp_path / "out.onnx", fuse="all", library=False, require_fused=30.0)
    assert error.value.report.coverage == 0.25
    assert (
        optimize(branches, fuse="all", library=False, verify=False, require_fused=25.0).coverage
        == 0.25
    )
    onnx.save(branches, tmp_path / "in.onnx")
    reports = [f"--report={tmp_path / name}" for name in ("r.json", "r.md")]
    flags = ["--no-library", "--fuse=all", "--require-fused=30", *reports]
    assert main(["optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), *flags]) == 4
    assert "less than --require-fused 30" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "r.json", "r.md"]


def test_require_fused_of_a_model_without_products(tmp_path: Path) -> None:
    with pytest.raises(
        CoverageError, match=r"do 0\.0% of .*, less than require_fused=1; the model has no"
    ):
        optimize(
            model_of("(float[2] x) => (float[2] y)", "y = Relu(x)"),
            tmp_path / "out.onnx",
            require_fused=1.0,
        )
    assert not list(tmp_path.iterdir())


def test_products_that_no_kernel_computes_say_so() -> None:
    found = products(
        model_of(
            "(float[1,4,6,6] x, float[1,18,6,6] at) => (float[1,8,6,6] y)",
            "y = DeformConv<pads=[1,1,1,1]>(x, w, at)",
            w=(8, 4, 3, 3),
        ),
        {},
    )
    (refusal,) = left_out(found, (), ())
    assert refusal.reason == (
        "a deformable convolution, whose filter meets pixels at computed positions"
    )
