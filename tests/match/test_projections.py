"""Projections of one input become one product, whose result attention reads in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

import onnxbolt
from onnxbolt.canonicalize import position_form
from onnxbolt.dtypes import DType
from onnxbolt.graph import weights
from onnxbolt.inspection import inspect_model
from onnxbolt.match import projections
from onnxbolt.match.patterns import anchors
from onnxbolt.measurements.timings import NOTHING
from onnxbolt.ops import OPS
from onnxbolt.options import Options
from onnxbolt.plan.cost import predict
from onnxbolt.plan.regions import regions
from onnxbolt.problems import GemmProblem
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.submodels import Original, fuse
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.support import Net, feeds_of, prepare, run

B, S, H, D = 2, 5, 4, 8  # batch, positions, heads, size
WIDTH = H * D


class Layers:
    """Attention layers; `x` and `memory` are inputs [B, S, WIDTH]."""

    def __init__(self, batch: int | str = B, width: int = WIDTH) -> None:
        self.net = Net({"x": (batch, S, width), "memory": (batch, S, width)})
        self.width = width

    def projected(self, x: str, weight: str = "", bias: bool = True, size: int = 0) -> str:
        """[B, S, H x size]."""
        columns = H * size if size else self.width
        weight = weight or self.weight(columns)
        y = self.net.node("MatMul", x, weight)
        return self.net.node("Add", y, self.net.normal(columns)) if bias else y

    def weight(self, columns: int = WIDTH) -> str:
        return self.net.normal(self.width, columns, scale=self.width**-0.5)

    def by_heads(self, x: str, *perm: int) -> str:
        shape = self.net.const([0, 0, H, -1], np.int64)
        return self.net.node("Transpose", self.net.node("Reshape", x, shape), perm=perm)

    def attended(self, q: str, k: str, v: str) -> str:
        """[B, S, H x size of v]."""
        scores = self.net.node("MatMul", self.by_heads(q, 0, 2, 1, 3), self.by_heads(k, 0, 2, 3, 1))
        scores = self.net.node("Mul", scores, self.net.const(D**-0.5))
        p = self.net.node("Softmax", scores, axis=-1)
        y = self.net.node("MatMul", p, self.by_heads(v, 0, 2, 1, 3))
        y = self.net.node("Transpose", y, perm=[0, 2, 1, 3])
        return self.net.node("Reshape", y, self.net.const([0, 0, -1], np.int64))

    def model(self, *outputs: str) -> ModelProto:
        ends = [self.net.node("Relu", y) for y in outputs]
        return self.net.model(*ends)


def attention(**choices: Any) -> ModelProto:
    """Self attention."""
    layers = Layers(**choices)
    return layers.model(layers.attended(*(layers.projected("x") for _ in "qkv")))


def optimized(model: ModelProto, path: Path, precision: str = "keep") -> ModelProto:
    """The model after all stages, which were found right."""
    report = onnxbolt.optimize(
        model, path, archs="sm_80", precision=precision, fuse="all", library=False
    )
    assert report.passed
    return onnx.load(path)


def ops(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


def attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def joined(model: ModelProto) -> list[list[str]]:
    """The tensors that each node's output holds side by side."""
    found = (attributes(node).get("joined_tensors") for node in model.graph.node)
    return [[name.decode() for name in names] for names in found if names]


# --- merged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_three_projections_of_one_input_become_one(precision: str, tmp_path: Path) -> None:
    """Nothing is left between the projections and the next node."""
    model = attention(batch="batch")
    new = optimized(model, tmp_path / "out.onnx", precision)
    casts = {"Cast"} if precision != "keep" else set()
    kinds = [op.rpartition("_")[0] for op in ops(new) if op not in casts and op != "Relu"]
    assert kinds == ["FusedGemm_Bias", "FusedAttention_qkv_packed"]
    merged, reader = (node for node in new.graph.node if node.op_type.startswith("Fused"))
    assert reader.input[0] == reader.input[1] == reader.input[2] == merged.output[0]
    assert joined(new) == [["add1", "add3", "add5"]]
    assert attributes(merged)["joined_widths"] == [WIDTH] * 3
    assert attributes(merged)["tensor"] == b""
    if precision == "keep":
        feeds = feeds_of(model)
        np.testing.assert_allclose(run(new, feeds)[0], run(model, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_positions_of_queries_and_keys_are_rows_of_the_merged_bias(
    precision: str, tmp_path: Path
) -> None:
    """DETR adds them in front of the projections, and not to values."""
    layers = Layers(batch=1)
    moved = layers.net.node("Add", "x", layers.net.normal(1, S, WIDTH))
    parts = (layers.projected(x, bias=x == "x") for x in (moved, moved, "x"))
    model = layers.model(layers.attended(*parts))
    new = optimized(model, tmp_path / "out.onnx", precision)
    kinds = [op.rpartition("_")[0] for op in ops(new) if op not in ("Cast", "Relu")]
    assert kinds == ["FusedGemm_Add", "FusedAttention_qkv_packed"]
    merged = next(node for node in new.graph.node if node.op_type.startswith("FusedGemm"))
    (rows,) = (t for t in new.graph.initializer if t.name == merged.input[2])
    values = numpy_helper.to_array(rows) if precision != "bf16" else None
    assert list(rows.dims) == [1, S, 3 * WIDTH]
    if values is not None:  # the values' bias is the same in all rows
        assert np.ptp(values[..., 2 * WIDTH :], axis=1).max() == 0
        assert np.ptp(values[..., : 2 * WIDTH], axis=1).min() > 0


def test_reports_name_the_merge(tmp_path: Path) -> None:
    model = attention()
    report = onnxbolt.optimize(
        model, tmp_path / "out.onnx", archs="sm_80", fuse="all", library=False, verify=False
    )
    assert "projections: 3 (projections of one input merged)" in report.changes
    (gemm,) = (node for node in report.fused if node.op.startswith("FusedGemm"))
    assert gemm.tensor == "add1, add3, add5"
    assert gemm.source_nodes == ("matmul0", "matmul2", "matmul4", "add1", "add3", "add5")
    assert gemm.flops == 2 * B * S * WIDTH * 3 * WIDTH
    nodes = inspect_model(onnx.load(tmp_path / "out.onnx")).nodes
    (shown,) = (node for node in nodes if "Gemm" in node.op_type)
    assert shown.tensor == gemm.tensor


def test_a_projection_without_a_bias(tmp_path: Path) -> None:
    """Whisper's keys have none."""
    layers = Layers()
    parts = [layers.projected("x", bias=bias) for bias in (True, False, True)]
    new = optimized(layers.model(layers.attended(*parts)), tmp_path / "out.onnx")
    assert joined(new) == [["add1", "matmul2", "add4"]]


def test_projections_without_biases(tmp_path: Path) -> None:
    layers = Layers()
    parts = [layers.projected("x", bias=False) for _ in "qkv"]
    new = optimized(layers.model(layers.attended(*parts)), tmp_path / "out.onnx")
    assert "FusedGemm_f32" in ops(new)
    assert joined(new) == [parts]


def test_values_of_another_input_stay_apart(tmp_path: Path) -> None:
    """DETR: q and k read x with positions, v without."""
    layers = Layers()
    both = layers.net.node("Add", "x", "memory")
    q, k, v = layers.projected(both), layers.projected(both), layers.projected("x")
    new = optimized(layers.model(layers.attended(q, k, v)), tmp_path / "out.onnx")
    assert joined(new) == [[q, k]]
    assert "FusedAttention_qk_packed_f32" in ops(new)
    assert "Split" not in ops(new)


def test_keys_and_values_of_several_layers(tmp_path: Path) -> None:
    """A decoder's layers read one memory."""
    layers, y, parts = Layers(), "x", list[str]()
    for _ in range(2):
        k, v = layers.projected("memory"), layers.projected("memory")
        parts += [k, v]
        y = layers.attended(layers.projected(y), k, v)
    new = optimized(layers.model(y), tmp_path / "out.onnx")
    assert joined(new) == [parts]
    assert ops(new).count("FusedAttention_kv_packed_f32") == 2
    assert "Split" not in ops(new)


def test_keys_whose_sizes_are_asked_for(tmp_path: Path) -> None:
    """Dynamo's keys with symbolic sizes: through three axes, whose sizes are computed of the keys
    by heads."""

    class Asked(Layers):
        def by_heads(self, x: str, *perm: int) -> str:
            if perm != (0, 2, 3, 1):
                return super().by_heads(x, *perm)
            k = super().by_heads(x, 0, 2, 1, 3)
            size = self.net.node("Shape", k, start=2, end=3)
            one, rest = self.net.const([-1], np.int64), self.net.const([D], np.int64)
            shape = self.net.node("Concat", one, size, rest, axis=0)
            k = self.net.node("Transpose", self.net.node("Reshape", k, shape), perm=[0, 2, 1])
            batch = self.net.node("Shape", x, start=0, end=1)
            heads = self.net.const([H, D], np.int64)
            shape = self.net.node("Concat", batch, heads, size, axis=0)
            return self.net.node("Reshape", k, shape)

    layers = Asked("batch")
    y = layers.attended(*(layers.projected("x") for _ in "qkv"))
    new = optimized(layers.model(y), tmp_path / "out.onnx")
    assert joined(new) == [["add1", "add3", "add5"]]
    assert ops(new) == ["FusedGemm_Bias_f32", "FusedAttention_qkv_packed_f32", "Relu"]


def test_values_of_another_width(tmp_path: Path) -> None:
    layers = Layers()
    q, k, v = layers.projected("x"), layers.projected("x"), layers.projected("x", size=2 * D)
    new = optimized(layers.model(layers.attended(q, k, v)), tmp_path / "out.onnx")
    assert joined(new) == [[q, k, v]]
    views = attributes(next(node for node in new.graph.node if "Attention" in node.op_type))
    assert list(views["v_view"]) == [2 * D, H, 0, 2 * H, 2 * D]


def test_layers_that_share_weights_share_the_merged_one(tmp_path: Path) -> None:
    """ALBERT."""
    layers, y = Layers(), "x"
    shared = [layers.weight() for _ in "qkv"]
    for _ in range(3):
        y = layers.attended(*(layers.projected(y, weight) for weight in shared))
    new = optimized(layers.model(y), tmp_path / "out.onnx")
    assert len(joined(new)) == 3
    gemms = [node for node in new.graph.node if node.op_type.startswith("FusedGemm")]
    assert len({node.input[1] for node in gemms}) == 1


def test_regions_with_merged_products_can_be_measured() -> None:
    """The tuner takes each region out of the model, with ONNX Runtime's nodes and with ours."""
    layers, y = Layers(), "x"
    for _ in range(2):
        k, v = layers.projected("memory"), layers.projected("memory")
        y = layers.attended(layers.projected(y), k, v)
    model = layers.model(y, layers.attended(*(layers.projected("x") for _ in "qkv")))
    subject, original = Subject.of(model, Options()), Original(model, "fp16")
    found = regions(subject.plan([90], "all", NOTHING).assignment, 90)
    assert len(found) == 6
    for region in found:
        nodes = original.nodes_of(region)
        assert nodes is not None
        ends = {candidate.output.name for candidate in region.candidates}
        assert len(fuse(nodes[1], 90, NOTHING, ends).problems) == len(region.candidates)


# --- left as they are -----------------------------------------------------------------------------


def merged(model: ModelProto, precision: str = "keep") -> bool:
    """True if anything was merged."""
    graph = prepare(model, precision)
    before = [node.op for node in graph.nodes]
    log = projections.merge(graph)
    assert bool(log) == ([node.op for node in graph.nodes] != before)
    return bool(log)


@pytest.fixture
def unmatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention is not matched."""
    monkeypatch.setattr(type(OPS["attention"]), "anchors", lambda op: ())
    anchors.cache_clear()
    yield
    anchors.cache_clear()


@pytest.mark.usefixtures("unmatched")
def test_nothing_is_merged_where_no_kernel_reads_it() -> None:
    assert not merged(attention())


def test_projections_that_others_read() -> None:
    layers = Layers()
    q, k, v = (layers.projected("x") for _ in "qkv")
    model = layers.model(layers.attended(q, k, v), q)
    graph = prepare(model)
    assert projections.merge(graph)  # k and v
    (split,) = (node for node in graph.nodes if node.op == "Split")
    assert [tensor.name for tensor in split.outputs] == [k, v]


def test_graph_outputs_stay_what_they_are() -> None:
    layers = Layers()
    q, k, v = (layers.projected("x") for _ in "qkv")
    y = layers.attended(q, k, v)
    assert not merged(layers.net.model(y, k, v))


def test_projections_of_different_inputs() -> None:
    layers = Layers()
    q, k = layers.projected("x"), layers.projected("memory")
    v = layers.projected(layers.net.node("Relu", "memory"))
    assert not merged(layers.model(layers.attended(q, k, v)))


def test_an_activation_behind_a_projection() -> None:
    layers = Layers()
    parts = [layers.net.node("Relu", layers.projected("x")) for _ in "qkv"]
    assert not merged(layers.model(layers.attended(*parts)))


def test_parts_that_would_not_begin_at_16_bytes() -> None:
    """Rows of 20 elements in 16 bits."""
    assert merged(attention(width=20), "keep")
    assert not merged(attention(width=20), "fp16")


def test_parts_whose_heads_would_cross_groups() -> None:
    """Heads of 12 elements behind 64 others, in rows of 112."""
    layers = Layers()
    q, k, v = layers.projected("x"), layers.projected("x"), layers.projected("x", size=12)
    assert not merged(layers.model(layers.attended(q, k, v)))


@pytest.mark.parametrize(("large", "expected"), [(weights.LARGE, True), (1024, False)])
def test_weights_that_others_read(
    large: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a small one is no loss."""
    layers = Layers()
    shared = layers.weight()
    y = layers.attended(*(layers.projected("x", weight) for weight in (shared, "", "")))
    model = layers.model(y, layers.net.node("MatMul", "memory", shared))
    monkeypatch.setattr(weights, "LARGE", large)
    assert merged(model) is expected


# --- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        *((arch, DType.F16) for arch in (75, 80, 86, 89, 90)),
        *((arch, DType.F32) for arch in (80, 86, 89, 90)),  # sm_75 has no TF32
    ],
)
def test_a_merged_product_is_never_predicted_to_be_slower(arch: int, dtype: DType) -> None:
    def us(m: int, n: int, k: int) -> float:
        return predict(GemmProblem(m, n, k, dtype, dtype, ("Bias",)), arch)[1]

    for k in (32, 256, 768, 1024):
        for parts in ((k, k, k), (k, k), (k, k // 4, k // 4)):
            for m in (1, 16, 40, 197, 1280, 6304, 16384):
                apart = sum(us(m, n, k) for n in parts)
                assert us(m, sum(parts), k) <= apart, (m, parts, k)


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90])
def test_a_merged_product_with_rows_is_never_predicted_to_be_slower(arch: int) -> None:
    """Up to the rows that canonicalization makes; values have rows of their bias then."""

    def us(m: int, n: int, k: int, step: str) -> float:
        return predict(GemmProblem(m, n, k, DType.F16, DType.F16, (step,)), arch)[1]

    for k in (32, 256, 512, 1024):
        for m in (16, 100, 300, 1050, 4096):
            if m * k * 4 <= position_form.MOST_BYTES:
                apart = 2 * us(m, k, k, "Add") + us(m, k, k, "Bias")
                assert us(m, 3 * k, k, "Add") <= apart, (m, k)


# --- faults ---------------------------------------------------------------------------------------


def faulty(path: Path, change: Callable[[ModelProto, NodeProto], None]) -> list[str]:
    """Original tensors whose segments fail after `change` of the merged node; the model's output
    hides it."""
    layers = Layers()
    y = layers.attended(*(layers.projected("x") for _ in "qkv"))
    y = layers.net.node("Add", layers.net.node("Mul", y, layers.net.const(1e-6)), "x")
    model = layers.model(y)
    new = optimized(model, path)
    change(new, next(node for node in new.graph.node if "Gemm" in node.op_type))
    result = verify(model, new, providers=[CPU])
    assert all(row.passed for row in result.at("model"))
    return sorted({row.name for row in result.at("segment") if row.failed})


def test_a_wrong_order_is_found(tmp_path: Path) -> None:
    """Keys and values swapped in the merged weight and bias."""

    def swap(model: ModelProto, node: NodeProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in node.input[1:3]:
                q, k, v = np.split(numpy_helper.to_array(tensor), 3)
                tensor.CopyFrom(numpy_helper.from_array(np.concatenate([q, v, k]), tensor.name))

    assert faulty(tmp_path / "out.onnx", swap) == ["add3", "add5"]


def test_a_wrong_bias_is_found(tmp_path: Path) -> None:
    def shift(model: ModelProto, node: NodeProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == node.input[2]:
                values = numpy_helper.to_array(tensor).copy()
                values[WIDTH + 3] += 0.5
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    assert faulty(tmp_path / "out.onnx", shift) == ["add3"]


def _set(node: NodeProto, name: str, value: Sequence[Any]) -> None:
    next(a for a in node.attribute if a.name == name).CopyFrom(helper.make_attribute(name, value))


def test_a_reader_of_the_wrong_part_is_found(tmp_path: Path) -> None:
    def read_keys_twice(model: ModelProto, node: NodeProto) -> None:
        (reader,) = (n for n in model.graph.node if "Attention" in n.op_type)
        _set(reader, "v_view", attributes(reader)["k_view"])

    assert faulty(tmp_path / "out.onnx", read_keys_twice) == ["reshape17"]


@pytest.mark.parametrize(
    ("name", "value", "failing"),
    [
        ("joined_tensors", ["add3", "add1", "add5"], ["add1", "add3", "reshape17"]),
        ("joined_tensors", ["add1", "add3"], [""]),
        ("joined_tensors", ["add1", "add3", "nothing"], ["nothing"]),
        ("joined_widths", [WIDTH, WIDTH], ["add1", "add3", "reshape17"]),
        ("joined_widths", [WIDTH, 2 * WIDTH, WIDTH], ["add1", "add5", "reshape17"]),
    ],
)
def test_wrong_attributes_are_found(
    name: str, value: Sequence[Any], failing: list[str], tmp_path: Path
) -> None:
    def change(model: ModelProto, node: NodeProto) -> None:
        _set(node, name, value)

    assert faulty(tmp_path / "out.onnx", change) == failing


# --- the zoo --------------------------------------------------------------------------------------


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("name", "widths"),
    [
        # 6 layers of encoder and 5 of decoder have q and k of one input; the first of the decoder
        # has constant probabilities. All 6 read keys of the encoder, and values of the encoder.
        ("detr_r50.dynamo", {2: 11, 6: 2}),
        ("bert_base.ts", {3: 12}),
        ("bert_base.dynamo", {3: 12}),
        ("timm_vit_base_patch16_224.ts", {}),
        ("timm_vit_base_patch16_224.dynamo", {}),
    ],
)
def test_projections_of_the_zoo(
    name: str, widths: dict[int, int], zoo: Callable[[str], ModelProto]
) -> None:
    graph = prepare(zoo(name), "fp16")
    projections.merge(graph)
    found = [len(t.joined) for t in _variables(graph) if hasattr(t, "joined")]
    assert {count: found.count(count) for count in found} == widths


def _variables(graph: gs.Graph) -> list[gs.Tensor]:
    return [tensor for node in graph.nodes for tensor in node.outputs]
