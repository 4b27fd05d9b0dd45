"""Normalization of rows over the last axis, with a residual before: ONNX LayerNormalization and
RMSNormalization, and ONNX Runtime's SimplifiedLayerNormalization and SkipLayerNormalization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.canonicalize import rotary_form
from onnxbolt.dtypes import DType, IndexType
from onnxbolt.forms import PLAIN
from onnxbolt.ops.attention.attributes import place
from onnxbolt.ops.attention.body import apart
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import REST, AttributeType, Body
from onnxbolt.ops.norm import embeddings, heads, modulated, pattern, tokens
from onnxbolt.ops.norm.embeddings import EmbeddingAnchor
from onnxbolt.ops.norm.heads import HeadAnchor
from onnxbolt.ops.norm.modulated import ModulatedAnchor
from onnxbolt.ops.norm.tokens import TokenAnchor
from onnxbolt.ops.products import operands
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import (
    EmbeddingNormProblem,
    HeadNormProblem,
    ModulatedNormProblem,
    NormProblem,
    TokenNormProblem,
)


class _Norm(FusedOp):
    """x [.., C] to y [.., C], and to x plus the residual if that has further readers, or to the
    values of y beside its codes. The candidate's links are, as far as they are there, Add with the
    residual, Store, Scale with gamma, Bias with beta, a store of values, and Quantize."""

    problem_type = NormProblem
    centered: ClassVar[bool]

    def anchors(self) -> Sequence[AnchorPattern]:
        """The residual's Add, or the normalization."""
        return pattern.anchors(self, self.centered)

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> NormProblem:
        """Rows are all axes of x but the last one."""
        *rows, columns = sizes(candidate.anchor.x)
        return NormProblem(
            math.prod(rows),
            columns,
            self.centered,
            candidate.anchor.dtype,
            candidate.out,
            candidate.steps,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epsilon`, and `epilogue_params` where it makes codes."""
        anchor = candidate.anchor
        codes = candidate.out.is_code
        return Operation(
            Signature(self, anchor.dtype, 0, tuple(s.of_type for s in candidate.epilogue)),
            [
                tensors.get(anchor.x, stored.reads),
                *operands(candidate, (stored.writes,), tensors),
            ],
            {
                "epsilon": pattern.epsilon(anchor.nodes[-1]),
                **(candidate.parameters if codes else {}),
            },
        )

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Epsilon, and the numbers of the step Quantize."""
        codes = any(step.row.given for step in signature.steps)
        return {
            "epsilon": AttributeProto.FLOAT,
            **({"epilogue_params": AttributeProto.FLOATS} if codes else {}),
        }

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The statistics in fp32, as the kernels have them; the sum is rounded where it is
        stored, values beside codes are not rounded in front of these."""
        steps, names = signature.steps, iter(super().inputs(signature))
        result, have = self._x(body, signature), body.dtype
        for step in steps:
            if step.name == "Add":
                result = body("Add", [result, body.load(next(names))])
            elif step.name == "Store":
                body.store(result)
                result = body.load("stored")
        result = self._normalized(body, body.convert(result, have, DType.F32), opset)
        for step in steps:
            if step.row.operand == "vector":
                result = step.row.body(body, opset, result, next(names), step.params)
        result = self._modulated(body, signature, result)
        if steps and steps[-1].row.cast:
            body.dtype = DType.F32
            for step in steps:
                if step.row.values:
                    body.store(result, step.row.values)
            return steps[-1].row.body(body, opset, result, "", steps[-1].params)
        return body.convert(result, DType.F32, have)

    def _x(self, body: Body, signature: Signature) -> str:
        return body.load("x")

    def _modulated(self, body: Body, signature: Signature, y: str) -> str:
        """The result that a subclass makes of the normalized rows `y`, in fp32."""
        return y

    def _normalized(self, body: Body, x: str, opset: int) -> str:
        if self.centered:
            x = body("Sub", [x, _mean(body, x, opset)])
        squares = _mean(body, body("Mul", [x, x]), opset)
        shifted = body("Add", [squares, body.given("epsilon", AttributeProto.FLOAT)])
        return body("Div", [x, body("Sqrt", [shifted])])


class LayerNorm(_Norm):
    """LayerNormalization and SkipLayerNormalization."""

    name, op_type, centered = "layer_norm", "LayerNorm", True
    makes_codes = True


class RmsNorm(_Norm):
    """RMSNormalization, SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization."""

    name, op_type, centered = "rms_norm", "RmsNorm", False
    makes_codes = True


class _TokenNorm(_Norm):
    """x [B, L, C] to y [B, S, C], and to the sum if that has further readers: the same rows [S, C]
    are added to each sequence, in front of which are S - L tokens of these rows alone."""

    problem_type = TokenNormProblem

    def anchors(self) -> Sequence[AnchorPattern]:
        """The Concat with the first tokens, or the sum."""
        return tokens.anchors(self, self.centered)

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> NormProblem:
        """Rows are those of the result."""
        anchor = _tokens(candidate)
        batch, _, columns = sizes(anchor.x)
        return TokenNormProblem(
            batch * anchor.tokens,
            columns,
            self.centered,
            anchor.dtype,
            anchor.dtype,
            candidate.steps,
            tokens=anchor.tokens,
            prefix=anchor.prefix,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epsilon` and, with tokens in front, `prefix`."""
        anchor = _tokens(candidate)
        x, _, *vectors = super().operation(candidate, stored, tensors).inputs
        rows = tensors.constant(f"{candidate.output.name}_rows", anchor.rows)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue, variant=anchor.prefix),
            [x, rows, *vectors],
            {
                "epsilon": pattern.epsilon(anchor.nodes[-1]),
                **({"prefix": anchor.prefix} if anchor.prefix else {}),
            },
        )

    def words(self, signature: Signature) -> Sequence[str]:
        """The number of tokens in front, which the body has."""
        return [f"prefix{signature.variant}"] if signature.variant else []

    def _x(self, body: Body, signature: Signature) -> str:
        """With zeros as the tokens in front."""
        x, prefix = body.load("x"), signature.variant
        if not prefix:
            return x
        assert isinstance(prefix, int)  # `operation` makes no others
        return body("Pad", [x, body.ints(0, prefix, 0, 0, 0, 0)])


class TokenLayerNorm(_TokenNorm):
    """LayerNormalization of tokens."""

    name, op_type, centered = "token_layer_norm", "TokenLayerNorm", True


class TokenRmsNorm(_TokenNorm):
    """RMSNormalization and SimplifiedLayerNormalization of tokens."""

    name, op_type, centered = "token_rms_norm", "TokenRmsNorm", False


@dataclass(frozen=True)
class Lookups:
    """The variant of a signature: the type of the indices, and the number of tables."""

    indices: IndexType
    tables: int


class _EmbeddingNorm(_Norm):
    """Indices x [B, S] to y [B, S, C], and to the sum if that has further readers: s is the sum of
    the rows that the indices name in tables [.., C], and of the same rows [S, C] for each sequence
    if there are such."""

    problem_type = EmbeddingNormProblem

    def anchors(self) -> Sequence[AnchorPattern]:
        """The first Gather of the sum."""
        return embeddings.anchors(self, self.centered)

    def channels(self, anchor: Anchor) -> int:
        """Columns of the tables."""
        return _embeddings(anchor).columns_of_tables

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> NormProblem:
        """Rows are those of the result."""
        anchor = _embeddings(candidate.anchor)
        batch, length = sizes(anchor.x)
        return EmbeddingNormProblem(
            batch * length,
            anchor.columns_of_tables,
            self.centered,
            anchor.dtype,
            anchor.dtype,
            candidate.steps,
            tokens=length,
            tables=len(anchor.lookups),
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epsilon` and `columns`."""
        anchor = _embeddings(candidate.anchor)
        pairs = [tensors.get(t, stored.reads) for pair in anchor.lookups for t in pair]
        vectors = operands(candidate, (stored.writes,), tensors)
        if anchor.rows is not None:
            vectors[0] = tensors.constant(f"{candidate.output.name}_rows", anchor.rows)
        variant = Lookups(anchor.index_type, len(anchor.lookups))
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue, variant=variant),
            [*pairs, *vectors],
            {
                "epsilon": pattern.epsilon(anchor.nodes[-1]),
                "columns": anchor.columns_of_tables,
            },
        )

    def words(self, signature: Signature) -> Sequence[str]:
        """The indices' type, and the number of tables."""
        lookups = _lookups(signature)
        return [lookups.indices.value, f"tables{lookups.tables}"]

    def indices(self, signature: Signature) -> IndexType:
        """That of the indices."""
        return _lookups(signature).indices

    def letters(self, signature: Signature) -> str:
        """The first table, then indices and table of each further one."""
        return "t" + "nt" * (_lookups(signature).tables - 1)

    def inputs(self, signature: Signature) -> list[str]:
        """Those of `letters`, then those of the norm."""
        further = range(1, _lookups(signature).tables)
        pairs = [f"{name}{i}" for i in further for name in ("indices", "table")]
        return ["table0", *pairs, *super().inputs(signature)]

    def _x(self, body: Body, signature: Signature) -> str:
        """The sum of the embeddings."""
        total = _gathered(body, "table0", "x")
        for i in range(1, _lookups(signature).tables):
            total = body("Add", [total, _gathered(body, f"table{i}", f"indices{i}")])
        return total


class EmbeddingLayerNorm(_EmbeddingNorm):
    """LayerNormalization of embeddings."""

    name, op_type, centered = "embedding_layer_norm", "EmbeddingLayerNorm", True


class EmbeddingRmsNorm(_EmbeddingNorm):
    """RMSNormalization and SimplifiedLayerNormalization of embeddings."""

    name, op_type, centered = "embedding_rms_norm", "EmbeddingRmsNorm", False


class _ModulatedNorm(_Norm):
    """x [B, S, C] to y [B, S, C], and to the sum if that has further readers: the normalized rows
    times 1 + scale, plus shift, where scale and shift are vectors of each sequence. The sum is that
    of the residual and x times a gate, a third such vector, if there is one."""

    problem_type = ModulatedNormProblem
    makes_codes = False

    def anchors(self) -> Sequence[AnchorPattern]:
        """The gate's product, the residual's Add, or the normalization."""
        return modulated.anchors(self, self.centered)

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> NormProblem:
        """Rows are those of all sequences."""
        anchor = _modulation(candidate.anchor)
        batch, length, columns = sizes(anchor.x)
        return ModulatedNormProblem(
            batch * length,
            columns,
            self.centered,
            anchor.dtype,
            anchor.dtype,
            candidate.steps,
            tokens=length,
            gated=anchor.gate is not None,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epsilon`."""
        anchor = _modulation(candidate.anchor)
        variant = Modulation(anchor.gate is not None)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue, variant=variant),
            [
                tensors.get(anchor.x, stored.reads),
                *(tensors.get(vector, PLAIN) for vector in anchor.further),
                *operands(candidate, (stored.writes,), tensors),
            ],
            {"epsilon": pattern.epsilon(anchor.normalization)},
        )

    def letters(self, signature: Signature) -> str:
        """The vectors of each sequence."""
        return "i" * len(_gated(signature).inputs)

    def inputs(self, signature: Signature) -> list[str]:
        """Those of `letters`, then those of the norm."""
        return [*_gated(signature).inputs, *super().inputs(signature)]

    def words(self, signature: Signature) -> Sequence[str]:
        """`Gated`, where there is a gate."""
        return ["Gated"] if _gated(signature).gated else []

    def _x(self, body: Body, signature: Signature) -> str:
        """x times the gate."""
        x = body.load("x")
        if not _gated(signature).gated:
            return x
        return body("Mul", [x, self._of_sequences(body, signature, "gate", body.dtype)])

    def _modulated(self, body: Body, signature: Signature, y: str) -> str:
        scale, shift = (
            self._of_sequences(body, signature, name, DType.F32) for name in ("scale", "shift")
        )
        return body("Add", [body("Add", [body("Mul", [y, scale]), y]), shift])

    def _of_sequences(self, body: Body, signature: Signature, name: str, dtype: DType) -> str:
        """The vectors [B, 1, C], which the node may have as [B, C]."""
        vectors = body.reshape(name, body.size("x", 0), 1, body.size("x", -1))
        return body.convert(vectors, signature.dtype, dtype)


class ModulatedLayerNorm(_ModulatedNorm):
    """LayerNormalization that vectors of each sequence modulate."""

    name, op_type, centered = "modulated_layer_norm", "ModulatedLayerNorm", True


class ModulatedRmsNorm(_ModulatedNorm):
    """RMSNormalization and SimplifiedLayerNormalization that vectors of each sequence modulate."""

    name, op_type, centered = "modulated_rms_norm", "ModulatedRmsNorm", False


@dataclass(frozen=True)
class Modulation:
    """The variant of a signature: x is multiplied by a gate."""

    gated: bool

    @property
    def inputs(self) -> list[str]:
        """Names of the sequences' vectors in the function body."""
        return ["scale", "shift", *["gate"] * self.gated]


@dataclass(frozen=True)
class Heads:
    """The variant of a signature: the heads are all of x, and y has them as one axis."""

    whole: bool
    joined: bool


class _HeadNorm(_Norm):
    """Each head of x [B, S, N] to y [B, S, H, D]; to [B, S, H x D] where the epilogue ends with
    Rotate."""

    problem_type = HeadNormProblem
    rotates = None

    def anchors(self) -> Sequence[AnchorPattern]:
        """The normalization."""
        return heads.anchors(self, self.centered)

    def channels(self, anchor: Anchor) -> int:
        """Those of all heads."""
        found = _heads(anchor)
        return found.heads * found.view.size

    def writes_slices(self, anchor: Anchor) -> bool:
        """False: heads lie side by side."""
        return False

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> NormProblem:
        """Rows are heads."""
        anchor = _heads(candidate.anchor)
        batch, length, _ = sizes(anchor.x)
        *period, width = (1, 1) if anchor.table is None else sizes(anchor.table)
        return HeadNormProblem(
            batch * length * anchor.heads,
            anchor.view.size,
            self.centered,
            anchor.dtype,
            candidate.out,
            candidate.steps,
            heads=anchor.heads,
            rotated=anchor.rotated,
            period=math.prod(period),
            width=width,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epsilon`, `view`, and with Rotate `rotated_columns`, else `apart`. gamma and
        beta have a value for each column of all heads."""
        anchor = _heads(candidate.anchor)
        rotated = anchor.table is not None
        inputs = [tensors.get(anchor.x, stored.reads)]
        for link in candidate.links:
            assert link.operand is not None  # each of these steps has one
            if link.step.row.operand == "vector":
                values = link.operand.values.astype(np.float32).reshape(-1)
                repeated = np.tile(values, self.channels(anchor) // len(values))
                inputs.append(tensors.constant(f"{link.operand.name}_heads", repeated))
            else:
                inputs.append(tensors.get(link.operand, PLAIN))
        variant = Heads(anchor.view.whole, rotated)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue, variant=variant),
            inputs,
            {
                "epsilon": pattern.epsilon(anchor.node),
                "view": place(anchor.view, anchor.heads),
                **({"rotated_columns": anchor.rotated} if rotated else {"apart": 1}),
            },
        )

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Epsilon, the place of the heads, and the columns that Rotate turns."""
        rotated = {"rotated_columns": AttributeProto.INT}
        return {
            "epsilon": AttributeProto.FLOAT,
            "view": AttributeProto.INTS,
            **(rotated if _variant(signature).joined else {}),
        }

    def words(self, signature: Signature) -> Sequence[str]:
        """`packed`: x has more than the heads."""
        return [] if _variant(signature).whole else ["packed"]

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """All of it in fp32, as the kernels have it."""
        variant, names = _variant(signature), iter(self.inputs(signature))
        x = apart(body, body.load("x"), "view", variant.whole)
        result = self._normalized(body, body.widen(x), opset)
        heads_and_size = body("Slice", [body("Shape", [result]), body.ints(2), body.ints(REST)])
        for step in signature.steps:
            name = next(names)
            if step.row.operand == "vector":
                vector = body("Reshape", [name, heads_and_size])
                result = step.row.body(body, opset, result, vector, step.params)
            else:
                columns = body.given("rotated_columns", AttributeProto.INT)
                columns = body("Reshape", [columns, body.ints(1)])
                rows = body.reshape(result, 0, 0, body.size(result, 2, REST))
                table = body.convert(name, body.stored, DType.F32)
                result = rotary_form.rotated(body, opset, rows, table, columns)
        return result


class HeadLayerNorm(_HeadNorm):
    """LayerNormalization of heads."""

    name, op_type, centered = "head_layer_norm", "HeadLayerNorm", True


class HeadRmsNorm(_HeadNorm):
    """RMSNormalization and SimplifiedLayerNormalization of heads."""

    name, op_type, centered = "head_rms_norm", "HeadRmsNorm", False


def _gathered(body: Body, table: str, indices: str) -> str:
    return body.convert(body("Gather", [table, indices], axis=0), body.stored, body.dtype)


def _embeddings(anchor: Anchor) -> EmbeddingAnchor:
    assert isinstance(anchor, EmbeddingAnchor)  # the pattern makes no others
    return anchor


def _lookups(signature: Signature) -> Lookups:
    assert isinstance(signature.variant, Lookups)  # `operation` makes no others
    return signature.variant


def _heads(anchor: Anchor) -> HeadAnchor:
    assert isinstance(anchor, HeadAnchor)  # the pattern makes no others
    return anchor


def _variant(signature: Signature) -> Heads:
    assert isinstance(signature.variant, Heads)  # `operation` makes no others
    return signature.variant


def _modulation(anchor: Anchor) -> ModulatedAnchor:
    assert isinstance(anchor, ModulatedAnchor)  # the pattern makes no others
    return anchor


def _gated(signature: Signature) -> Modulation:
    assert isinstance(signature.variant, Modulation)  # `operation` makes no others
    return signature.variant


def _tokens(candidate: Candidate) -> TokenAnchor:
    assert isinstance(candidate.anchor, TokenAnchor)  # the pattern makes no others
    return candidate.anchor


def _mean(body: Body, x: str, opset: int) -> str:
    """The mean over the last axis, which stays."""
    if opset >= 18:
        return body("ReduceMean", [x, body.ints(-1)], keepdims=1)
    return body("ReduceMean", [x], axes=[-1], keepdims=1)
