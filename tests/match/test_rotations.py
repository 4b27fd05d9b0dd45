"""Rotary embeddings of queries and keys become a step of their projections: which do, what nodes
compute, and why others stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.canonicalize import rotary_form
from onnxbolt.canonicalize.restore import restore
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.exporter import export_model
from onnxbolt.match import projections, rotations
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Options
from onnxbolt.plan.regions import regions
from onnxbolt.problems import RotaryProblem
from onnxbolt.report import Report
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.submodels import Original, fuse
from tests.support import Net, feeds_of, prepare, run

B, S, H, D, WIDTH = 2, 12, 4, 16, 48


class Layer:
    """An attention [B, S, H x D] of rotated queries and keys, in any form."""

    def __init__(self, batch: int | str = B, length: int | str = S, opset: int = 17) -> None:
        self.net = Net({"x": (batch, length, WIDTH)}, opset=opset)

    def ints(self, *numbers: int) -> str:
        return self.net.const(list(numbers), np.int64)

    def projected(self, columns: int, bias: bool = True) -> str:
        net = self.net
        y = net.node("MatMul", "x", net.normal(WIDTH, columns, scale=WIDTH**-0.5))
        return net.node("Add", y, net.normal(columns)) if bias else y

    def cut(self, x: str, begin: int, end: int, axis: int = -1, step: int = 1) -> str:
        return self.net.node("Slice", x, *(self.ints(n) for n in (begin, end, axis, step)))

    def by_heads(self, x: str, heads: int = H) -> str:
        """[B, heads, S, D] of [B, S, heads x D]."""
        x = self.net.node("Reshape", x, self.ints(0, 0, heads, -1))
        return self.net.node("Transpose", x, perm=[0, 2, 1, 3])

    def tables(self, width: int = D, interleaved: bool = False, rank: int = 4) -> tuple[str, str]:
        """cos and sin of each element, [1, 1, S, width]."""
        angles = np.outer(np.arange(S), 10.0 ** -np.arange(width // 2))
        twice = np.repeat(angles, 2, 1) if interleaved else np.tile(angles, (1, 2))
        shape = (1,) * (rank - 2) + twice.shape
        cos, sin = (self.net.const(f(twice).reshape(shape)) for f in (np.cos, np.sin))
        return cos, sin

    def halves(self, x: str, width: int) -> str:
        a, b = self.cut(x, 0, width // 2), self.cut(x, width // 2, width)
        return self.net.node("Concat", self.net.node("Neg", b), a, axis=-1)

    def neighbours(self, x: str, width: int) -> str:
        a, b = (self.cut(x, begin, width, step=2) for begin in (0, 1))
        negative = self.net.node("Neg", b)
        pairs = [self.net.node("Unsqueeze", each, self.ints(-1)) for each in (negative, a)]
        stacked = self.net.node("Concat", *pairs, axis=-1)
        return self.net.node("Reshape", stacked, self.ints(0, 0, 0, width))

    def rotated(self, x: str, cos: str, sin: str, turn: str = "halves", width: int = D) -> str:
        """x cos + turn(x) sin."""
        turned = getattr(self, turn)(x, width)
        straight, crossed = self.net.node("Mul", x, cos), self.net.node("Mul", turned, sin)
        return self.net.node("Add", straight, crossed)

    def attended(self, q: str, k: str, v: str) -> str:
        net = self.net
        scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2]))
        p = net.node("Softmax", net.node("Mul", scores, net.const(D**-0.5)), axis=-1)
        y = net.node("Transpose", net.node("MatMul", p, v), perm=[0, 2, 1, 3])
        return net.node("Reshape", y, self.ints(0, 0, H * D))

    def model(self, y: str, *others: str) -> onnx.ModelProto:
        y = self.net.node("MatMul", y, self.net.normal(H * D, WIDTH, scale=0.1))
        return self.net.model(y, *others)


def separate(turn: str = "halves", bias: bool = True) -> onnx.ModelProto:
    layer = Layer()
    tables = layer.tables(interleaved=turn == "neighbours")
    q, k, v = (layer.by_heads(layer.projected(H * D, bias)) for _ in "qkv")
    q, k = (layer.rotated(each, *tables, turn=turn) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def packed(order: str = "qkv") -> onnx.ModelProto:
    """One product, [B, S, 3, H, D]."""
    layer = Layer()
    parts = layer.net.node("Reshape", layer.projected(3 * H * D), layer.ints(0, 0, 3, H, D))
    found = {}
    for i, name in enumerate(order):
        part = layer.net.node("Gather", parts, layer.net.const(i, np.int64), axis=2)
        found[name] = layer.net.node("Transpose", part, perm=[0, 2, 1, 3])
    tables = layer.tables()
    q, k = (layer.rotated(found[name], *tables) for name in "qk")
    return layer.model(layer.attended(q, k, found["v"]))


def packed_by_heads() -> onnx.ModelProto:
    """One product, [B, S, H, 3 x D], half of each head rotated (GPT-NeoX)."""
    layer, width = Layer(), D // 2
    net = layer.net
    parts = layer.by_heads(layer.projected(3 * H * D))
    q, k, v = (layer.cut(parts, i * D, (i + 1) * D) for i in range(3))
    cos, sin = layer.tables(width)
    q, k = (
        net.node(
            "Concat",
            layer.rotated(layer.cut(each, 0, width), cos, sin, width=width),
            layer.cut(each, width, D),
            axis=-1,
        )
        for each in (q, k)
    )
    return layer.model(layer.attended(q, k, v))


def grouped() -> onnx.ModelProto:
    """Each key head serves two heads, whose copies lie side by side (Llama)."""
    layer = Layer(opset=18)
    net = layer.net
    tables = layer.tables()
    q, k, v = (layer.by_heads(layer.projected(h * D, False), h) for h in (H, H // 2, H // 2))
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    copies = []
    for each in (k, v):
        each = net.node("Unsqueeze", each, layer.ints(2))
        each = net.node("Expand", each, layer.ints(B, H // 2, 2, S, D))
        copies.append(net.node("Reshape", each, layer.ints(B, H, S, D)))
    return layer.model(layer.attended(q, *copies))


def positions_first() -> onnx.ModelProto:
    """Neighbours of a part of [B, S, H, D], divided into heads afterwards (GPT-J)."""
    layer, width = Layer(), D // 2
    net = layer.net
    angles = np.repeat(np.outer(np.arange(S), 10.0 ** -np.arange(width // 2)), 2, 1)
    cos, sin = (net.const(f(angles).reshape(1, S, 1, width)) for f in (np.cos, np.sin))
    q, k, v = (
        net.node("Reshape", layer.projected(H * D, False), layer.ints(0, 0, H, D)) for _ in "qkv"
    )
    q, k = (
        net.node(
            "Concat",
            layer.rotated(layer.cut(each, 0, width), cos, sin, "neighbours", width),
            layer.cut(each, width, D),
            axis=-1,
        )
        for each in (q, k)
    )
    heads = (net.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, k, v))
    return layer.model(layer.attended(*heads))


def written_out() -> onnx.ModelProto:
    """[a cos - b sin, b cos + a sin], with a number for each pair."""
    layer = Layer()
    net = layer.net
    angles = np.outer(np.arange(S), 10.0 ** -np.arange(D // 2))[None, None]
    cos, sin = net.const(np.cos(angles)), net.const(np.sin(angles))

    def rotated(x: str) -> str:
        a, b = layer.cut(x, 0, D // 2), layer.cut(x, D // 2, D)
        first = net.node("Sub", net.node("Mul", a, cos), net.node("Mul", b, sin))
        second = net.node("Add", net.node("Mul", b, cos), net.node("Mul", a, sin))
        return net.node("Concat", first, second, axis=-1)

    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    return layer.model(layer.attended(rotated(q), rotated(k), v))


def first_positions_stay(turn: str = "halves") -> onnx.ModelProto:
    """Two class tokens in front of the patches are not rotated (DINOv3, EVA)."""
    layer = Layer(length=S + 2)
    tables = layer.tables(interleaved=turn == "neighbours")
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (
        layer.net.node(
            "Concat",
            layer.cut(each, 0, 2, axis=2),
            layer.rotated(layer.cut(each, 2, S + 2, axis=2), *tables, turn=turn),
            axis=2,
        )
        for each in (q, k)
    )
    return layer.model(layer.attended(q, k, v))


def computed(
    batch: int | str = "batch", twice: bool = True, casts: bool = False
) -> onnx.ModelProto:
    """Angles computed from positions of each batch [B, S], in fp32 between Casts if the model has
    them (Hugging Face)."""
    layer = Layer(batch, "length")
    net = layer.net
    net.inputs += Net({"positions": (batch, "length")}).inputs
    at = net.node("Unsqueeze", "positions", layer.ints(-1))
    angles = net.node("Mul", at, net.const(10.0 ** -np.arange(D // 2)))
    if twice:
        angles = net.node("Concat", angles, angles, axis=-1)
    else:
        angles = net.node("Concat", angles, net.node("Relu", angles), axis=-1)
    cos, sin = (net.node("Unsqueeze", net.node(f, angles), layer.ints(1)) for f in ("Cos", "Sin"))
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.rotated(each, cos, sin) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def operators(interleaved: int, by_heads: bool = True) -> onnx.ModelProto:
    """ONNX Runtime's operator, which reads rows of the tables at positions."""
    layer = Layer()
    net = layer.net
    angles = np.outer(np.arange(2 * S), 10.0 ** -np.arange(D // 2))
    cos, sin = net.const(np.cos(angles)), net.const(np.sin(angles))
    positions = net.const(np.stack([np.arange(S), np.arange(S)[::-1]]), np.int64)
    q, k, v = (layer.projected(H * D) for _ in "qkv")
    attributes = {} if by_heads else {"num_heads": H}
    if by_heads:
        q, k = layer.by_heads(q), layer.by_heads(k)
    q, k = (
        net.node(
            "RotaryEmbedding",
            each,
            *(positions, cos, sin),
            domain=CONTRIB,
            interleaved=interleaved,
            **attributes,
        )
        for each in (q, k)
    )
    if not by_heads:
        q, k = layer.by_heads(q), layer.by_heads(k)
    return layer.model(layer.attended(q, k, layer.by_heads(v)))


def scaled_before() -> onnx.ModelProto:
    """Queries are scaled in front of their rotation (ESM)."""
    layer = Layer()
    tables = layer.tables()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q = layer.net.node("Mul", q, layer.net.const(0.3))
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def tables_of_their_own() -> onnx.ModelProto:
    """Equal tables for queries and for keys, and a scale behind the queries' rotation (EVA)."""
    layer = Layer()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.rotated(each, *layer.tables()) for each in (q, k))
    return layer.model(layer.attended(layer.net.node("Mul", q, layer.net.const(0.3)), k, v))


def operators_alone(contrib: bool) -> onnx.ModelProto:
    """The operator in front of one that is attention by itself, in rows."""
    layer = Layer(opset=17 if contrib else 23)
    net = layer.net
    angles = np.outer(np.arange(2 * S), 10.0 ** -np.arange(D // 2))
    cos, sin = net.const(np.cos(angles)), net.const(np.sin(angles))
    positions = net.const(np.stack([np.arange(S), np.arange(S)[::-1]]), np.int64)
    given = (positions, cos, sin) if contrib else (cos, sin, positions)
    domain = CONTRIB if contrib else ""
    q, k, v = (layer.projected(H * D) for _ in "qkv")
    q, k = (
        net.node("RotaryEmbedding", each, *given, num_heads=H, domain=domain) for each in (q, k)
    )
    if contrib:
        return layer.model(net.node("MultiHeadAttention", q, k, v, num_heads=H, domain=CONTRIB))
    return layer.model(net.node("Attention", q, k, v, q_num_heads=H, kv_num_heads=H))


def of_several_axes(flatten: bool = False) -> onnx.ModelProto:
    """Tables [positions, D] of computed angles of two axes, each of them for two neighbours, as
    FLUX has them; a Flatten in place of the Reshape as TorchScript writes it."""
    layer, found = Layer(), []
    net = layer.net
    net.inputs += Net({"axes": (S, 2)}).inputs
    for i in range(2):
        place = layer.cut("axes", i, i + 1)
        angles = net.node("Mul", place, net.const(10.0 ** -np.arange(D // 4).reshape(1, -1)))
        parts = []
        for function in ("Cos", "Sin"):
            single = net.node("Unsqueeze", net.node(function, angles), layer.ints(-1))
            twice = net.node("Tile", single, layer.ints(1, 1, 2))
            reshaped = net.node("Reshape", twice, layer.ints(0, D // 2))
            parts.append(net.node("Flatten", twice) if flatten else reshaped)
        found.append(parts)
    cos, sin = (
        net.node("Unsqueeze", net.node("Concat", *parts, axis=1), layer.ints(0, 1))
        for parts in zip(*found, strict=True)
    )
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.rotated(each, cos, sin, "neighbours") for each in (q, k))
    return layer.model(layer.attended(q, k, v))


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "halves": separate,
    "halves without biases": lambda: separate(bias=False),
    "neighbours": lambda: separate("neighbours"),
    "packed": packed,
    "packed, values first": lambda: packed("vqk"),
    "packed by heads, a part": packed_by_heads,
    "grouped queries": grouped,
    "positions first": positions_first,
    "written out": written_out,
    "first positions stay": first_positions_stay,
    "first positions stay, neighbours": lambda: first_positions_stay("neighbours"),
    "computed tables": computed,
    "tables of several axes": of_several_axes,
    "tables of several axes, flattened": lambda: of_several_axes(flatten=True),
    "operator, halves": lambda: operators(0),
    "operator, neighbours": lambda: operators(1),
    "operator of rows": lambda: operators(0, by_heads=False),
    "scaled before": scaled_before,
    "tables of their own": tables_of_their_own,
    "operators of ONNX": lambda: operators_alone(contrib=False),
    "operators of ONNX Runtime": lambda: operators_alone(contrib=True),
}


def sizes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Sizes of the inputs of a model that has symbolic ones."""
    inputs = model.graph.input
    symbolic = any(d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim)
    return {"x": (2, 12, WIDTH), "positions": (2, 12)} if symbolic else {}


def optimized(model: onnx.ModelProto, precision: str = "keep", arch: str = "sm_90a") -> Report:
    return onnxbolt.optimize(
        model,
        precision=precision,
        archs=(arch,),
        fuse="all",
        library=False,
        opt_shapes=sizes_of(model),
    )


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_the_rotation_is_a_step_of_one_product(form: str, precision: str) -> None:
    report = optimized(FORMS[form](), precision)
    rules = [node.rule.removesuffix("+CastF32") for node in report.fused]
    bias = (
        "" if form in ("halves without biases", "grouped queries", "positions first") else "+Bias"
    )
    assert rules == [f"rotary{bias}+Rotate", "attention", "gemm"]
    assert report.passed
    assert not [refusal for refusal in report.refusals if "rotary" in refusal.reason]


@pytest.mark.parametrize("form", FORMS)
def test_what_no_kernel_takes_is_written_as_operators(form: str) -> None:
    model = FORMS[form]()
    graph = prepare(model)
    projections.merge(graph)
    assert rotations.move(graph) == ["rotations: 2 (rotary embeddings moved to projections)"]
    assert restore(graph) >= 1
    assert all(node.op != rotary_form.OP for node in graph.nodes)
    feeds = feeds_of(model)
    (expected,), (got,) = run(model, feeds), run(export_model(graph), feeds)
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("form", ["halves", "computed tables", "packed by heads, a part"])
def test_regions_with_rotations_can_be_measured(form: str) -> None:
    """The tuner takes each region out of the model, with ONNX Runtime's nodes and with ours."""
    model = FORMS[form]()
    options = Options(precision="fp16", opt_shapes=sizes_of(model))
    subject, original = Subject.of(model, options), Original(model, "fp16")
    plan = subject.plan([90], "all", NOTHING)
    first, *_ = found = regions(plan.assignment, 90, subject.ranges.opt)
    assert len(found) == 3
    nodes = original.nodes_of(first)
    assert nodes is not None
    ends = {candidate.output.name for candidate in first.candidates}
    (problem,) = fuse(nodes[1], 90, NOTHING, ends).problems
    assert isinstance(problem, RotaryProblem)
    assert problem in plan.problems.values()


def test_layers_share_a_table() -> None:
    """Each has Unsqueezes of its own in front of it."""
    layer = Layer()
    net = layer.net
    net.inputs += Net({"angles": (1, S, D // 2)}).inputs
    twice = net.node("Concat", "angles", "angles", axis=-1)
    cos, sin = net.node("Cos", twice), net.node("Sin", twice)
    results = []
    for _ in range(2):
        own = (net.node("Unsqueeze", each, layer.ints(1)) for each in (cos, sin))
        own_cos, own_sin = own
        q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
        q, k = (layer.rotated(each, own_cos, own_sin) for each in (q, k))
        results.append(layer.attended(q, k, v))
    graph = prepare(layer.model(*results))
    assert rotations.move(graph)
    nodes = [node for node in graph.nodes if node.op == rotary_form.OP]
    assert len(nodes) == 4
    assert len({node.inputs[1].name for node in nodes}) == 1


def _read_elsewhere() -> onnx.ModelProto:
    """Rotated keys are an output (present keys)."""
    layer = Layer()
    tables = layer.tables()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v), layer.net.node("Relu", k))


def _product_read_elsewhere() -> onnx.ModelProto:
    layer = Layer()
    tables = layer.tables()
    projected = [layer.projected(H * D) for _ in "qkv"]
    q, k, v = (layer.by_heads(each) for each in projected)
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v), layer.net.node("Relu", projected[0]))


def _other_tables() -> onnx.ModelProto:
    layer = Layer()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = layer.rotated(q, *layer.tables()), layer.rotated(k, *layer.tables()[::-1])
    return layer.model(layer.attended(q, k, v))


def _keys_alone() -> onnx.ModelProto:
    layer = Layer()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    return layer.model(layer.attended(q, layer.rotated(k, *layer.tables()), v))


def _scaled_by_element() -> onnx.ModelProto:
    """Queries and keys are multiplied by numbers of a head's elements."""
    layer = Layer()
    tables = layer.tables()
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (
        layer.rotated(layer.net.node("Mul", each, layer.net.normal(D)), *tables) for each in (q, k)
    )
    return layer.model(layer.attended(q, k, v))


def _values_are_queries() -> onnx.ModelProto:
    """Attention reads the queries that are not rotated as its values."""
    layer = Layer()
    cos, sin = layer.tables()
    q, k = (layer.by_heads(layer.projected(H * D)) for _ in "qk")
    rotated, k = (layer.rotated(each, cos, sin) for each in (q, k))
    return layer.model(layer.attended(rotated, k, q))


def _two_attentions() -> onnx.ModelProto:
    """Two layers share keys."""
    layer = Layer()
    cos, sin = layer.tables()
    first, second, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qqkv")
    first, second = (layer.rotated(each, cos, sin) for each in (first, second))
    keys = (layer.rotated(k, cos, sin) for _ in range(2))
    y = layer.attended(first, next(keys), v)
    return layer.model(layer.net.node("Add", y, layer.attended(second, next(keys), v)))


def _tables_of_heads() -> onnx.ModelProto:
    layer = Layer()
    angles = np.tile(layer.net.rng.standard_normal((1, H, S, D // 2)), 2)
    cos, sin = layer.net.const(np.cos(angles)), layer.net.const(np.sin(angles))
    q, k, v = (layer.by_heads(layer.projected(H * D)) for _ in "qkv")
    q, k = (layer.rotated(each, cos, sin) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


def _run_time_weight() -> onnx.ModelProto:
    layer = Layer()
    layer.net.inputs += Net({"w": (WIDTH, 3 * H * D)}).inputs
    net = layer.net
    parts = net.node("Reshape", net.node("MatMul", "x", "w"), layer.ints(0, 0, 3, H, D))
    q, k, v = (
        net.node(
            "Transpose",
            net.node("Gather", parts, net.const(i, np.int64), axis=2),
            perm=[0, 2, 1, 3],
        )
        for i in range(3)
    )
    tables = layer.tables()
    q, k = (layer.rotated(each, *tables) for each in (q, k))
    return layer.model(layer.attended(q, k, v))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_read_elsewhere, "its result is read elsewhere, too"),
        (_product_read_elsewhere, "the product's result is read elsewhere, too"),
        (_other_tables, "queries and keys are rotated by different tables"),
        (_keys_alone, "queries or keys alone are rotated"),
        (_scaled_by_element, "its input is normalized or scaled behind the product"),
        (_values_are_queries, "its columns are read elsewhere, too"),
        (_two_attentions, "several attentions read the product"),
        (_tables_of_heads, "its tables are not the same for all heads"),
        (lambda: computed(twice=False), "the elements of a pair may have different angles"),
        (_run_time_weight, "the product's weight is computed at run time"),
    ],
)
def test_others_stay_where_they_are(made: Callable[[], onnx.ModelProto], reason: str) -> None:
    report = optimized(made())
    reasons = [refusal.reason for refusal in report.refusals if "rotary" in refusal.reason]
    assert reasons
    assert {each.partition(":")[0] for each in reasons} == {
        f"a rotary embedding is in no kernel, because {reason}"
    }
    assert report.passed


def test_older_architectures_rotate_as_well(tmp_path: Path) -> None:
    for arch in ("sm_80", "sm_90a"):
        report = onnxbolt.optimize(
            separate(), tmp_path / "out.onnx", precision="fp16", archs=arch, library=False
        )
        assert report.passed
        assert sum("FusedRotary" in node.op for node in report.fused) == 1


def test_a_lock_file_repeats_the_plan(tmp_path: Path) -> None:
    lock = str(tmp_path / "model.lock")
    first, again = (
        onnxbolt.optimize(
            separate(),
            tmp_path / f"{frozen}.onnx",
            precision="fp16",
            archs=("sm_90a", "sm_80"),
            fuse="all",
            lock=lock,
            frozen=frozen,
            library=False,
            verify=False,
        )
        for frozen in (False, True)
    )
    assert "rotary 24x192x48, 128 columns by 12x16" in Path(lock).read_text()
    assert [node.rule for node in again.fused] == [node.rule for node in first.fused]
    assert (tmp_path / "True.onnx").read_bytes() == (tmp_path / "False.onnx").read_bytes()
