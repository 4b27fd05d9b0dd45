"""Normalizations of queries' and keys' heads: kernels read them from the projections' result by
strides, and rotate them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.canonicalize.restore import restore
from onnxbolt.domains import INTERNAL
from onnxbolt.graph.exporter import export_model
from onnxbolt.match import head_norms, projections, rotations
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Options
from onnxbolt.plan.regions import regions
from onnxbolt.problems import HeadNormProblem
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.submodels import Original, fuse
from tests.match.test_rotations import WIDTH, B, D, H, Layer, S
from tests.support import Net, feeds_of, prepare, run


class Normalized(Layer):
    """An attention whose queries and keys are normalized."""

    def rms(self, x: str, width: int = D) -> str:
        """As Hugging Face's models are exported."""
        net = self.net
        squares = net.node("Mul", x, x)
        if net.opset < 18:
            mean = net.node("ReduceMean", squares, axes=[-1], keepdims=1)
        else:
            mean = net.node("ReduceMean", squares, self.ints(-1), keepdims=1)
        root = net.node("Sqrt", net.node("Add", mean, net.const(1e-6)))
        return net.node("Mul", net.node("Div", x, root), self.factors(width))

    def layer(self, x: str, width: int = D) -> str:
        given = self.factors(width), self.net.normal(width)
        return self.net.node("LayerNormalization", x, *given, axis=-1)

    def factors(self, width: int) -> str:
        return self.net.const(1 + self.net.rng.standard_normal(width) / 4)

    def by_rows(self, x: str, heads: int = H) -> str:
        """[B, S, heads, D] of [B, S, heads x D]."""
        return self.net.node("Reshape", x, self.ints(0, 0, heads, -1))

    def exchanged(self, x: str) -> str:
        return self.net.node("Transpose", x, perm=[0, 2, 1, 3])

    def grouped(self, x: str, heads: int) -> str:
        """Copies of each head side by side."""
        x = self.net.node("Unsqueeze", x, self.ints(2))
        x = self.net.node("Expand", x, self.ints(1, heads, H // heads, 1, D))
        return self.net.node("Reshape", x, self.ints(0, H, -1, D))

    def packed(self) -> list[str]:
        """One product, as timm has it: q, k and v [B, H, S, D]."""
        parts = self.net.node("Reshape", self.projected(3 * H * D), self.ints(0, 0, 3, H, D))
        parts = self.net.node("Transpose", parts, perm=[2, 0, 3, 1, 4])
        return [
            self.net.node("Gather", parts, self.net.const(i, np.int64), axis=0) for i in range(3)
        ]


def of_rows() -> onnx.ModelProto:
    """Heads are normalized in front of the Transpose, keys are shared (Qwen3)."""
    layer = Normalized("batch")
    shared = H // 2
    q, k, v = (layer.by_rows(layer.projected(n * D, False), n) for n in (H, shared, shared))
    q, k = (layer.exchanged(layer.rms(each)) for each in (q, k))
    tables = layer.tables()
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    copies = (layer.grouped(each, shared) for each in (k, layer.exchanged(v)))
    return layer.model(layer.attended(q, *copies))


def of_any_length() -> onnx.ModelProto:
    """As TorchScript writes sizes: positions up to the length of x, and copies of keys by a shape
    of several nodes. Queries and keys have cos and sin of their own, as dynamo writes them."""
    layer = Normalized("batch", "length", opset=18)
    net, shared = layer.net, H // 2
    batch, length = (
        net.node("Gather", net.node("Shape", "x"), net.const(axis, np.int64)) for axis in (0, 1)
    )
    positions = net.node("Range", net.const(0, np.int64), length, net.const(1, np.int64))
    angles = net.node("Cast", net.node("Unsqueeze", positions, layer.ints(1)), to=1)
    angles = net.node("Mul", angles, net.const(10.0 ** -np.arange(D // 2)))
    angles = net.node("Concat", angles, angles, axis=-1)
    sizes = [net.node("Unsqueeze", each, layer.ints(0)) for each in (batch, length)]
    target = net.node(
        "Concat", sizes[0], layer.ints(shared, H // shared), sizes[1], layer.ints(D), axis=0
    )
    whole = net.node("Equal", target, layer.ints(-1))
    target = net.node("Where", whole, layer.ints(1, 1, 1, 1, 1), target)

    def copied(x: str) -> str:
        x = net.node("Expand", net.node("Unsqueeze", x, layer.ints(2)), target)
        heads = net.node("Concat", sizes[0], layer.ints(H), sizes[1], layer.ints(D), axis=0)
        return net.node("Reshape", x, heads)

    q, k, v = (layer.by_heads(layer.projected(n * D, False), n) for n in (H, shared, shared))
    q, k = (
        layer.rotated(layer.rms(each), net.node("Cos", angles), net.node("Sin", angles))
        for each in (q, k)
    )
    return layer.model(layer.attended(q, copied(k), copied(v)))


def of_heads() -> onnx.ModelProto:
    """Behind the Transpose (Gemma 3)."""
    layer = Normalized()
    q, k, v = (layer.by_heads(layer.projected(H * D, False)) for _ in "qkv")
    tables = layer.tables()
    q, k = (layer.rotated(layer.rms(each), *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def of_packed(rotated: bool = False) -> onnx.ModelProto:
    """LayerNormalization (ViT-22B); with a rotation behind two class tokens (EVA-02)."""
    layer = Normalized(length=S + 2)
    q, k, v = layer.packed()
    q, k = (layer.layer(each) for each in (q, k))
    if rotated:
        tables = layer.tables(interleaved=True)
        q, k = (
            layer.net.node(
                "Concat",
                layer.cut(each, 0, 2, axis=2),
                layer.rotated(layer.cut(each, 2, S + 2, axis=2), *tables, turn="neighbours"),
                axis=2,
            )
            for each in (q, k)
        )
    return layer.model(layer.attended(q, k, v))


def of_each_head(by_heads: bool = False) -> onnx.ModelProto:
    """Each head has factors of its own, and no others (Cohere)."""
    layer = Normalized()
    net = layer.net
    q, k, v = (layer.by_rows(layer.projected(H * D, False)) for _ in "qkv")
    if by_heads:
        q, k = layer.exchanged(q), layer.exchanged(k)
    shape = (H, 1, D) if by_heads else (H, D)
    parts = []
    for each in (q, k):
        deviation = net.node("Sub", each, net.node("ReduceMean", each, axes=[-1], keepdims=1))
        squares = net.node("Mul", deviation, deviation)
        variance = net.node("ReduceMean", squares, axes=[-1], keepdims=1)
        root = net.node("Sqrt", net.node("Add", variance, net.const(1e-5)))
        parts.append(net.node("Mul", net.node("Div", deviation, root), net.normal(*shape)))
    if not by_heads:
        parts = [layer.exchanged(each) for each in parts]
    tables = layer.tables(interleaved=True)
    q, k = (layer.rotated(each, *tables, turn="neighbours") for each in parts)
    return layer.model(layer.attended(q, k, layer.exchanged(v)))


def of_all_heads() -> onnx.ModelProto:
    """All heads are one row (OLMo 2)."""
    layer = Normalized()
    q, k, v = (layer.projected(H * D, False) for _ in "qkv")
    q, k = (layer.rms(each, H * D) for each in (q, k))
    q, k, v = (layer.by_heads(each) for each in (q, k, v))
    tables = layer.tables()
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "in front of the Transpose": of_rows,
    "behind the Transpose": of_heads,
    "of any length": of_any_length,
    "packed": of_packed,
    "packed, rotated": lambda: of_packed(rotated=True),
    "factors of each head": of_each_head,
    "factors of each head behind the Transpose": lambda: of_each_head(by_heads=True),
    "all heads": of_all_heads,
}
KERNELS = {
    "in front of the Transpose": "head_rms_norm+Scale+Rotate",
    "behind the Transpose": "head_rms_norm+Scale+Rotate",
    "of any length": "head_rms_norm+Scale+Rotate",
    "packed": "head_layer_norm+Scale+Bias",
    "packed, rotated": "head_layer_norm+Scale+Bias+Rotate",
    "factors of each head": "head_layer_norm+Scale+Rotate",
    "factors of each head behind the Transpose": "head_layer_norm+Scale+Rotate",
    "all heads": "head_rms_norm+Scale+Rotate",
}


def sizes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Sizes of the inputs of a model that has symbolic ones."""
    symbolic = any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim)
    return {"x": (B, S, WIDTH)} if symbolic else {}


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_heads_are_normalized_in_kernels_of_their_own(form: str, precision: str) -> None:
    """No node is left between the products."""
    model = FORMS[form]()
    report = onnxbolt.optimize(
        model,
        precision=precision,
        archs=("sm_90a",),
        fuse="all",
        library=False,
        opt_shapes=sizes_of(model),
    )
    rules = [node.rule.removesuffix("+CastF32") for node in report.fused]
    projections = 3 if form == "all heads" else 1
    gemms = ["gemm+Bias" if form.startswith("packed") else "gemm"] * projections
    assert sorted(rules) == sorted([*gemms, *[KERNELS[form]] * 2, "attention", "gemm"])
    assert report.passed
    assert not [refusal for refusal in report.refusals if "rotary" in refusal.reason]


@pytest.mark.parametrize("form", FORMS)
def test_no_node_moves_heads(form: str, tmp_path: Path) -> None:
    model, out = FORMS[form](), tmp_path / "out.onnx"
    onnxbolt.optimize(
        model, out, precision="fp16", fuse="all", library=False, opt_shapes=sizes_of(model)
    )
    nodes = onnx.load(out).graph.node
    others = {node.op_type for node in nodes if not node.domain}
    assert not others & {"Transpose", "Neg", "Expand"}
    # tables are computed of positions
    assert others <= {"Cast"} or form == "of any length"


@pytest.mark.parametrize("form", FORMS)
def test_what_no_kernel_takes_is_written_as_operators(form: str) -> None:
    model = FORMS[form]()
    graph = prepare(model)
    head_norms.move(graph)
    projections.merge(graph)
    rotations.move(graph)
    restore(graph)
    assert all(node.domain != INTERNAL for node in graph.nodes)
    feeds = feeds_of(model)
    (expected,), (got,) = run(model, feeds), run(export_model(graph), feeds)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_regions_can_be_measured(form: str) -> None:
    model = FORMS[form]()
    options = Options(precision="fp16", opt_shapes=sizes_of(model))
    subject, original = Subject.of(model, options), Original(model, "fp16")
    plan = subject.plan([90], "all", NOTHING)
    found = [
        region
        for region in regions(plan.assignment, 90, subject.ranges.opt)
        if any(c.anchor.op.name.startswith("head_") for c in region.candidates)
    ]
    assert found
    for region in found:
        nodes = original.nodes_of(region)
        assert nodes is not None
        ends = {candidate.output.name for candidate in region.candidates}
        problems = fuse(nodes[1], 90, NOTHING, ends).problems
        assert any(isinstance(problem, HeadNormProblem) for problem in problems)
        assert set(problems) <= set(plan.problems.values())


def _factors_of_run_time() -> onnx.ModelProto:
    layer = Normalized(opset=23)
    layer.net.inputs += Net({"gamma": (D,)}).inputs
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.net.node("RMSNormalization", each, "gamma", axis=-1) for each in (q, k))
    tables = layer.tables()
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def _read_elsewhere() -> onnx.ModelProto:
    """Normalized keys are an output."""
    layer = Normalized()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.layer(each) for each in (q, k))
    tables = layer.tables()
    turned = [layer.rotated(each, *tables) for each in (q, k)]
    return layer.model(layer.attended(turned[0], turned[1], v), layer.net.node("Relu", k))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_factors_of_run_time, "its input is normalized by no constants of a head"),
        (_read_elsewhere, "the product's result is read elsewhere, too"),
    ],
)
def test_other_rotations_stay(made: Callable[[], onnx.ModelProto], reason: str) -> None:
    report = onnxbolt.optimize(made(), precision="keep", fuse="all", library=False)
    reasons = {r.reason.partition(":")[0] for r in report.refusals if "rotary" in r.reason}
    assert reasons == {f"a rotary embedding is in no kernel, because {reason}"}
    assert report.passed


@pytest.mark.parametrize("read", [True, False])
def test_heads_whose_means_are_read_stay(read: bool) -> None:
    """A normalization that is moved has one result."""
    layer = Normalized()
    net = layer.net
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    given = [net.normal(D), net.normal(D)]
    q, mean = net.several("LayerNormalization", q, *given, outputs=2, axis=-1)
    other = net.node("Abs", mean) if read else mean
    model = layer.model(layer.attended(q, layer.layer(k), v), other)
    graph = prepare(model)
    head_norms.move(graph)
    restore(graph)
    feeds = feeds_of(model)
    for expected, got in zip(run(model, feeds), run(export_model(graph), feeds), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)
