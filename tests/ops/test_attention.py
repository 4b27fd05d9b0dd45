"""Attention is recognized in all forms, planned, exported, and
computed by its function body in plain ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

import onnxbolt
from onnxbolt.ops import OPS
from onnxbolt.ops.attention.found import AttentionAnchor, Masked, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import HEADS, ROWS
from tests.ops.attention_form import (
    SCALE,
    D,
    Form,
    H,
    S,
    T,
    assert_in_16_bits,
    assert_same_answers,
    optimized,
)
from tests.support import Net, assert_same, matched, ops, prepare


def found(graph: gs.Graph) -> list[ScaledDotProduct | str]:
    """Each attention of the graph, or the reason why a softmax is none."""
    pattern = OPS["attention"].anchors()[0]
    matches = [pattern.match(node) for node in graph.nodes if node.op == "Softmax"]
    return [
        match[0].attention
        if isinstance(match, tuple) and isinstance(match[0], AttentionAnchor)
        else getattr(match, "reason", "")
        for match in matches
    ]


# --- the zoo's exports ----------------------------------------------------------------------------

# attentions by hand count, mask, answer for rows without keys, y's heads and size as one axis
ZOO = {
    "bert_base.dynamo": [(12, Masking.KEPT, Masked.PLAIN, True)],
    "bert_base.ts": [(12, Masking.KEPT, Masked.ZERO, True)],
    # 6 in the encoder, 6 across and 6 in the decoder, whose first has constant probabilities
    "detr_r50.dynamo": [
        (12, Masking.KEPT, Masked.PLAIN, True),
        (5, Masking.NONE, Masked.PLAIN, True),
    ],
    "detr_r50.ts": [
        (12, Masking.KEPT, Masked.ZERO, True),
        (6, Masking.NONE, Masked.PLAIN, True),
    ],
    "segformer_b0.dynamo": [(8, Masking.NONE, Masked.PLAIN, True)],
    "timm_vit_base_patch16_224.dynamo": [(12, Masking.NONE, Masked.PLAIN, True)],
    "timm_vit_base_patch16_224.ts": [(12, Masking.NONE, Masked.PLAIN, True)],
}
QUICK = ("segformer_b0.dynamo",)


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.zoo) for n in ZOO]
)
def test_each_attention_of_the_zoo_is_recognized(
    name: str, precision: str, zoo: Callable[[str], onnx.ModelProto]
) -> None:
    attentions = found(prepare(zoo(name), precision))
    assert not [each for each in attentions if isinstance(each, str)]
    kinds = [
        (each.mask.kind, each.masked, each.joined)
        for each in attentions
        if isinstance(each, ScaledDotProduct)
    ]
    assert {(kinds.count(kind), *kind) for kind in kinds} == set(ZOO[name])


@pytest.mark.zoo
@pytest.mark.parametrize("exporter", ["dynamo", "ts"])
def test_packed_projections_are_read_in_place(
    exporter: str, zoo: Callable[[str], onnx.ModelProto]
) -> None:
    for each in found(prepare(zoo(f"timm_vit_base_patch16_224.{exporter}"), "fp16")):
        assert isinstance(each, ScaledDotProduct)
        assert each.q.tensor is each.k.tensor is each.v.tensor
        assert each.q.tensor.shape[-2:] == [197, 3 * 768] or each.q.tensor.shape[-1] == 3 * 768
        places = [(view.pitch, view.first, view.lead) for view in (each.q, each.k, each.v)]
        assert places == [(64, 0, 0), (64, 12, 0), (64, 24, 0)]
        assert each.scale == pytest.approx(0.125, rel=1e-6)


@pytest.mark.timeout(900)
@pytest.mark.zoo
@pytest.mark.parametrize(
    "name", ["bert_base.dynamo", "bert_base.ts", "segformer_b0.dynamo", "detr_r50.dynamo"]
)
def test_the_zoo_is_right_with_it(
    name: str, zoo: Callable[[str], onnx.ModelProto], tmp_path: Path
) -> None:
    report = onnxbolt.optimize(zoo(name), tmp_path / "out.onnx", archs="sm_90a", library=False)
    assert report.passed
    fused = [node for node in report.fused if node.op.startswith("FusedAttention")]
    assert len(fused) == sum(count for count, *_ in ZOO[name])


# --- forms ----------------------------------------------------------------------------------------


class ScaledBehind(Form):
    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return q, k

    def masked(self, scores: str) -> str:
        return self.net.node("Div", scores, self.net.const([D**0.5]))


class ScaledBefore(Form):
    """Whisper's: the queries, before they are split into heads."""

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return q, k

    def q(self) -> str:
        y = self.net.node("MatMul", "x", self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        y = self.reshape(self.times(y, SCALE), -1, S, H, D)
        return self.transpose(y, 0, 2, 1, 3)


class KeysAtOnce(Form):
    """TorchScript's: one transposition."""

    def k(self) -> str:
        y = self.net.node("MatMul", "context", self.net.normal(H * D, H * D))
        return self.transpose(self.reshape(y, -1, T, H, D), 0, 2, 3, 1)


class KeysBy3d(Form):
    """Dynamo's: through [B x H, T, D]."""

    def k(self) -> str:
        y = self.reshape(self.projected("context", T), -1, T, D)
        return self.reshape(self.transpose(y, 0, 2, 1), -1, H, D, T)


class HeadsAtRunTime(Form):
    """DETR's by TorchScript: the shape of the keys is computed, and so is their number of heads."""

    def k(self) -> str:
        y = self.net.node("MatMul", "context", self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        shape = self.net.node("Shape", "context", start=0, end=2)
        index = self.net.node("ReduceMax", self.net.node("NonZero", "kept"), keepdims=0)
        zero = self.net.node("Min", index, self.net.const(0, np.int64))
        shape = self.net.node("Add", shape, zero)  # no size behind it is known
        shape = self.net.node("Concat", shape, self.ints(-1), self.ints(D), axis=0)
        return self.transpose(self.net.node("Reshape", y, shape), 0, 2, 3, 1)


class HeadsFirst(Form):
    """Queries that something else has changed behind their transposition."""

    def q(self) -> str:
        return self.net.node("Sin", super().q())


class Packed(Form):
    """Keys and values of one projection, as GPT-NeoX has them: side by side for each head."""

    def _part(self, index: int) -> str:
        if not hasattr(self, "both"):
            weight = self.net.normal(H * D, 2 * H * D, scale=(H * D) ** -0.5)
            self.both = self.reshape(self.net.node("MatMul", "context", weight), -1, T, H, 2 * D)
        ends = self.ints(index * D), self.ints((index + 1) * D), self.ints(3)
        return self.transpose(self.net.node("Slice", self.both, *ends), 0, 2, 1, 3)

    def k(self) -> str:
        return self.transpose(self._part(0), 0, 1, 3, 2)

    def v(self) -> str:
        return self._part(1)


class Added(Form):
    def masked(self, scores: str) -> str:
        return self.net.node("Add", scores, "added")


class Guarded(Added):
    """IsNaN and Where: zeros for rows without keys."""

    def weights(self, scores: str) -> str:
        p = super().weights(scores)
        return self.net.node("Where", self.net.node("IsNaN", p), self.net.const(0.0), p)


class AddedLow(Form):
    """Hugging Face's: zero or the lowest number."""

    def masked(self, scores: str) -> str:
        low = self.net.const(np.finfo(np.float32).min)
        mask = self.net.node("Where", "kept", self.net.const(0.0), low)
        return self.net.node("Add", scores, mask)


class Kept(Form):
    def masked(self, scores: str) -> str:
        return self.net.node("Where", "kept", scores, self.net.const(-np.inf))


class Dropped(Form):
    """masked_fill."""

    def masked(self, scores: str) -> str:
        mask = self.net.node("Not", "kept")
        return self.net.node("Where", mask, self.net.const(np.finfo(np.float32).min), scores)


class NothingMasked(Form):
    """SDPA's mask of zeros."""

    def masked(self, scores: str) -> str:
        return self.net.node("Add", scores, self.net.const(np.zeros((1, 1, S, T))))


class Apart(Form):
    """The result's shape is computed at run time."""

    def output(self, y: str) -> str:
        batch = self.net.node("Shape", "x", start=0, end=1)
        shape = self.net.node("Concat", batch, self.ints(-1), self.ints(H * D), axis=0)
        return self.net.node("Reshape", self.transpose(y, 0, 2, 1, 3), shape)


class Standard(Form):
    """Attention of opset 23, as dynamo writes it."""

    opset = 23

    def mask(self) -> tuple[str, ...]:
        return ()

    def attended(self) -> str:
        operands = self.q(), self.projected("context", T), self.v()
        return self.output(self.net.node("Attention", *operands, *self.mask()))


class StandardKept(Standard):
    def mask(self) -> tuple[str, ...]:
        return ("kept",)


class StandardAdded(Standard):
    def mask(self) -> tuple[str, ...]:
        return ("added",)


class StandardRows(Standard):
    """Heads are not split before it."""

    def projected(self, x: str, positions: int) -> str:
        return self.net.node("MatMul", x, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))

    def attended(self) -> str:
        operands = self.q(), self.projected("context", T), self.v()
        return self.net.node("Attention", *operands, q_num_heads=H, kv_num_heads=H, scale=0.25)


class StandardCausal(Standard):
    """The first query reads the first key alone, even with more keys than queries."""

    def attended(self) -> str:
        operands = self.q(), self.projected("context", T), self.v()
        return self.output(self.net.node("Attention", *operands, *self.mask(), is_causal=1))


class StandardCausalKept(StandardCausal):
    def mask(self) -> tuple[str, ...]:
        return ("kept",)


class StandardCausalAdded(StandardCausal):
    def mask(self) -> tuple[str, ...]:
        return ("added",)


class StandardGrouped(Standard):
    """Two heads share keys and values."""

    def narrow(self, x: str) -> str:
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * D // 2, scale=(H * D) ** -0.5))
        return self.transpose(self.reshape(y, -1, T, H // 2, D), 0, 2, 1, 3)

    def attended(self) -> str:
        operands = self.q(), self.narrow("context"), self.narrow("values")
        return self.output(self.net.node("Attention", *operands))


class StandardExpanded(StandardGrouped):
    """Qwen3's: keys and values are expanded before it."""

    def narrow(self, x: str) -> str:
        y = self.net.node("Unsqueeze", super().narrow(x), self.ints(2))
        y = self.net.node("Expand", y, self.ints(1, 1, 2, 1, 1))
        return self.reshape(y, -1, H, T, D)


class StandardLow(Standard):
    """ONNX Runtime answers zeros for the lowest number, too."""

    opset = 23

    def mask(self) -> tuple[str, ...]:
        low = self.net.const(np.finfo(np.float32).min)
        return (self.net.node("Where", "kept", self.net.const(0.0), low),)


class StandardPadding(Standard):
    """Numbers per key, computed in fp32: (1 - padding) x the lowest number."""

    def mask(self) -> tuple[str, ...]:
        numbers = self.net.node("Unsqueeze", "padding", self.ints(1, 2))
        numbers = self.net.node("Cast", numbers, to=TensorProto.FLOAT)
        numbers = self.net.node("Sub", self.net.const(1.0), numbers)
        numbers = self.net.node("Mul", numbers, self.net.const(-1e30))
        return (self.net.node("Expand", numbers, self.ints(1, 1, S, T)),)


class Expanded(StandardExpanded):
    """Grouped queries of several nodes."""

    opset = 17
    attended = Form.attended

    def k(self) -> str:
        return self.transpose(self.narrow("context"), 0, 1, 3, 2)

    def v(self) -> str:
        return self.narrow("values")


class Repeated(Expanded):
    """Head h reads head h % 2: the copies are no neighbours."""

    def narrow(self, x: str) -> str:
        y = self.net.node("Unsqueeze", StandardGrouped.narrow(self, x), self.ints(1))
        y = self.net.node("Expand", y, self.ints(1, 2, 1, 1, 1))
        return self.reshape(y, -1, H, T, D)


class OneKeyHead(Form):
    """All heads share keys and values, which the products broadcast."""

    def one(self, x: str) -> str:
        y = self.net.node("MatMul", x, self.net.normal(H * D, D, scale=(H * D) ** -0.5))
        return self.net.node("Unsqueeze", y, self.ints(1))

    def k(self) -> str:
        return self.transpose(self.one("context"), 0, 1, 3, 2)

    def v(self) -> str:
        return self.one("values")


class Folded(Form):
    """One axis for batch and heads, as torch.bmm wants it."""

    def projected(self, x: str, positions: int) -> str:
        return self.reshape(super().projected(x, positions), -1, positions, D)

    def k(self) -> str:
        return self.transpose(self.projected("context", T), 0, 2, 1)

    def output(self, y: str) -> str:
        return super().output(self.reshape(y, -1, H, S, D))


class FoldedMasked(Folded):
    """BART's: the mask is added to scores with an axis for heads."""

    def masked(self, scores: str) -> str:
        scores = self.net.node("Add", self.reshape(scores, -1, H, S, T), "added")
        return self.reshape(scores, -1, S, T)


class FoldedBias(Folded):
    """A mask that is the same for all batches and heads."""

    def masked(self, scores: str) -> str:
        return self.net.node("Add", scores, self.net.normal(1, S, T))


class FoldedKeys(Folded):
    """torch.nn.MultiheadAttention's: the mask has copies for the heads."""

    def masked(self, scores: str) -> str:
        mask = self.net.node("Expand", "kept", self.ints(1, H, 1, 1))
        mask = self.reshape(mask, -1, S, T)
        low, zero = self.net.const(-np.inf), self.net.const(0.0)
        return self.net.node("Add", scores, self.net.node("Where", mask, zero, low))


class Summed(Form):
    """Keras': Einsum, with heads behind positions."""

    def projected(self, x: str, positions: int) -> str:
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.reshape(y, -1, positions, H, D)

    def attended(self) -> str:
        q, k, v = self.q(), self.projected("context", T), self.v()
        scores = self.net.node("Einsum", k, self.times(q, SCALE), equation="aecd,abcd->acbe")
        p = self.weights(self.masked(scores))
        y = self.net.node("Einsum", p, v, equation="acbe,aecd->abcd")
        return self.reshape(y, -1, S, H * D)


class InOneNode(Form):
    """ONNX Runtime's FusedMatMul has the scale and the transposition."""

    def attended(self) -> str:
        q, k, v = self.q(), self.projected("context", T), self.v()
        more = {"alpha": SCALE, "transB": 1, "domain": "com.microsoft"}
        scores = self.net.node("FusedMatMul", q, k, **more)
        return self.output(self.net.node("MatMul", self.weights(scores), v))


class MultiHead(StandardRows):
    """ONNX Runtime's operator."""

    opset = 17

    def attended(self) -> str:
        operands = self.q(), self.projected("context", T), self.v()
        return self.net.node("MultiHeadAttention", *operands, num_heads=H, domain="com.microsoft")


FORMS = [
    (Form, "FusedAttention_f32"),
    (ScaledBehind, "FusedAttention_f32"),
    (ScaledBefore, "FusedAttention_f32"),
    (KeysAtOnce, "FusedAttention_f32"),
    (KeysBy3d, "FusedAttention_f32"),
    (HeadsAtRunTime, "FusedAttention_f32"),
    (HeadsFirst, "FusedAttention_q_by_heads_f32"),
    (Packed, "FusedAttention_kv_packed_f32"),
    (Added, "FusedAttention_added_f32_nan_f32"),
    (Guarded, "FusedAttention_added_f32_zero_f32"),
    (AddedLow, "FusedAttention_kept_f32"),
    (Kept, "FusedAttention_kept_nan_f32"),
    (Dropped, "FusedAttention_kept_f32"),
    (NothingMasked, "FusedAttention_f32"),
    (Apart, "FusedAttention_f32"),
    (Standard, "FusedAttention_f32"),
    (StandardKept, "FusedAttention_kept_zero_f32"),
    (StandardAdded, "FusedAttention_added_f32_zero_f32"),
    (StandardRows, "FusedAttention_f32"),
    (StandardCausal, "FusedAttention_nan_banded_f32"),
    (StandardCausalKept, "FusedAttention_kept_zero_banded_f32"),
    (StandardCausalAdded, "FusedAttention_added_f32_zero_banded_f32"),
    (StandardGrouped, "FusedAttention_grouped_f32"),
    (StandardExpanded, "FusedAttention_grouped_f32"),
    (StandardLow, "FusedAttention_kept_zero_f32"),
    (StandardPadding, "FusedAttention_added_f32_zero_f32"),
    (Expanded, "FusedAttention_grouped_f32"),
    (Repeated, "FusedAttention_kv_by_heads_f32"),
    (OneKeyHead, "FusedAttention_grouped_f32"),
    (Folded, "FusedAttention_f32"),
    (FoldedMasked, "FusedAttention_added_f32_nan_f32"),
    (FoldedBias, "FusedAttention_added_f32_f32"),
    (FoldedKeys, "FusedAttention_kept_nan_f32"),
    (Summed, "FusedAttention_f32"),
    (InOneNode, "FusedAttention_f32"),
    (MultiHead, "FusedAttention_f32"),
]


@pytest.mark.parametrize(("form", "op"), FORMS)
def test_bodies_answer_as_the_original_does(form: type[Form], op: str, tmp_path: Path) -> None:
    source, out = form("batch").model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    assert [node.op for node in report.fused if "Attention" in node.op] == [op]
    assert_same_answers(source, out)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", [Packed, AddedLow, Guarded, StandardLow, StandardPadding])
def test_it_is_right_in_low_precision(form: type[Form], precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(form().model(), precision, tmp_path / "out.onnx")


def test_views_reach_the_projections() -> None:
    (each,) = found(prepare(KeysBy3d().model()))
    assert isinstance(each, ScaledDotProduct)
    for view in (each.q, each.k, each.v):
        assert view.order == ROWS
        assert view.tensor.inputs[0].op == "MatMul"
    (each,) = found(prepare(HeadsAtRunTime("batch").model()))
    assert isinstance(each, ScaledDotProduct)
    assert (each.heads, isinstance(each.k.heads, str)) == (H, True)
    (each,) = found(prepare(HeadsFirst().model()))
    assert isinstance(each, ScaledDotProduct)
    assert (each.q.order, each.q.tensor.inputs[0].op) == (HEADS, "Sin")


# --- near misses ----------------------------------------------------------------------------------


class ScoresRead(Added):
    def masked(self, scores: str) -> str:
        self.outputs.append(self.net.node("Relu", scores))
        return super().masked(scores)


class WeightsRead(Form):
    def weights(self, scores: str) -> str:
        p = super().weights(scores)
        self.outputs.append(self.net.node("Relu", p))
        return p


class OverQueries(Form):
    def weights(self, scores: str) -> str:
        return self.net.node("Softmax", scores, axis=2)


class Negative(Form):
    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return self.times(q, -SCALE), k


class KeysTransposedFirst(Form):
    def k(self) -> str:
        return self.net.node("Sin", super().k())


class Past(Standard):
    def attended(self) -> str:
        k = self.projected("context", T)
        operands = self.q(), k, self.v(), "", k, k
        parts = self.net.several("Attention", *operands, outputs=3)
        return self.output(parts[0])


class ShortMask(Standard):
    def attended(self) -> str:
        k = self.projected("context", T)
        mask = self.net.node("Slice", "kept", self.ints(0), self.ints(T - 1), self.ints(3))
        return self.output(self.net.node("Attention", self.q(), k, self.v(), mask))


class NotTransposed(Form):
    def output(self, y: str) -> str:
        return self.reshape(y, -1, S, H * D)


class ResultScaled(Form):
    """ONNX Runtime's product with a factor, which no attention has behind the softmax."""

    def attended(self) -> str:
        q, k, v = self.q(), self.k(), self.v()
        weights = self.weights(self.net.node("MatMul", *self.scaled(q, k)))
        product = self.net.node("FusedMatMul", weights, v, domain="com.microsoft", alpha=0.5)
        return self.output(product)


class MaskUnits(Form):
    """Hiera's: heads, then units of positions that attend to each other."""

    def units(self, x: str, positions: int, *perm: int) -> str:
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.transpose(self.reshape(y, -1, positions, 1, H, D), *perm)

    def q(self) -> str:
        return self.units("x", S, 0, 3, 2, 1, 4)

    def k(self) -> str:
        return self.units("context", T, 0, 3, 2, 4, 1)

    def v(self) -> str:
        return self.units("values", T, 0, 3, 2, 1, 4)

    def output(self, y: str) -> str:
        return self.reshape(self.transpose(y, 0, 3, 2, 1, 4), -1, S, H * D)


class FiltersOfTokens(Form):
    """ConvBERT's: a softmax of one product with constants, which weighs values."""

    def attended(self) -> str:
        filters = self.net.node("MatMul", "x", self.net.normal(H * D, H * T))
        weights = self.weights(self.reshape(filters, -1, S, H, T))
        values = self.projected("values", T)
        return self.output(self.net.node("MatMul", self.transpose(weights, 0, 2, 1, 3), values))


class LargeHeads(Form):
    """One head of all channels, as in the autoencoders of diffusion models, and larger ones."""

    def _wide(self, x: str, positions: int) -> str:
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * 264, scale=(H * D) ** -0.5))
        return self.transpose(self.reshape(y, -1, positions, H, 264), 0, 2, 1, 3)

    def q(self) -> str:
        return self._wide("x", S)

    def k(self) -> str:
        return self.transpose(self._wide("context", T), 0, 1, 3, 2)


class TalkingHeads(Form):
    """CaiT's: a product with constants mixes the heads' probabilities."""

    def weights(self, scores: str) -> str:
        weights = self.transpose(super().weights(scores), 0, 2, 3, 1)
        mixed = self.net.node("MatMul", weights, self.net.normal(H, H))
        return self.transpose(self.add(mixed, self.net.normal(H)), 0, 3, 1, 2)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (ResultScaled, "nodes that attention has not stand between its products"),
        (MaskUnits, "its products have other axes than batch, heads, positions and size"),
        (LargeHeads, "no kernel has heads of more than 256 elements"),
        (TalkingHeads, "its probabilities are mixed by a product before they weigh values"),
        (FiltersOfTokens, "its scores are no product of queries and keys"),
        (ScoresRead, "its scores are read elsewhere, too"),
        (WeightsRead, "its probabilities are read elsewhere, too"),
        (OverQueries, "its softmax is not over the keys"),
        (Negative, "its scale is not positive"),
        (
            KeysTransposedFirst,
            "its queries, keys or values do not lie with a head's elements side by side",
        ),
        (Past, "it has past keys"),
        (ShortMask, "its mask may be shorter than its keys"),
        (NotTransposed, "its result is not brought to [batch, queries, heads, size]"),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [c for c in candidates if c.anchor.op.name == "attention"]
    begun = [r.reason for r in refusals if r.op in ("Softmax", "Attention")]
    assert reason in begun


@pytest.mark.parametrize("form", [AddedLow, Kept])
def test_what_makes_the_mask_does_not_stay(form: type[Form], tmp_path: Path) -> None:
    onnxbolt.optimize(
        form().model(),
        tmp_path / "out.onnx",
        archs="sm_80",
        precision="fp16",
        fuse="all",
        library=False,
        verify=False,
    )
    assert "Where" not in [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]


def test_a_split_stays_that_makes_an_operand() -> None:
    """Queries and keys are read by strides from the product, values from a part of it, since these
    do not begin at a multiple of their size."""
    net = Net({"x": ("batch", S, 32)})
    product, sizes = net.linear("x", 32, 64), net.const((8, 8, 48), np.int64)
    q, k, v = net.several("Split", product, sizes, outputs=3, axis=-1)
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    made = ops(assert_same(net.model(net.linear(y, 48, 32))))
    assert "FusedAttention_qk_packed_f32" in made
    assert "Split" in made


def test_a_softmax_without_products_is_nothing() -> None:
    net = Net({"x": (4, 8)})
    assert found(prepare(net.model(net.node("Softmax", "x")))) == [""]
