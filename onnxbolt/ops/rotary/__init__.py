"""Rotary position embeddings (Su et al. 2021) in the epilogue of the product that computes queries
and keys:

    (a, b) -> (a cos - b sin, b cos + a sin)    of neighbouring columns

A table [.., W] of P rows holds cos and sin of each pair of columns in their places. It repeats: row
r of the product is rotated by the table's row r mod P, and column c of the first `rotated_columns`
by its column c mod W. So one table serves all batches and heads, and (1, 0) leaves a pair as it
is.
match/rotations.py makes the nodes that this op takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.canonicalize import rotary_form
from onnxbolt.domains import INTERNAL
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, ROTATE, Step
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.edit import producer
from onnxbolt.ops.base import Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.products import ProductOp
from onnxbolt.patterns.types import AnchorPattern, Match
from onnxbolt.problems import RotaryProblem


@dataclass(frozen=True, eq=False, kw_only=True)
class RotaryAnchor(Anchor):
    """A product whose first `rotated` columns are rotated by `table`."""

    table: gs.Tensor
    rotated: int

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The table."""
        return (self.table,)


class Rotary(ProductOp):
    """x [.., K], weight [N, K], bias [N] if there is one, and the table [.., W] to y [.., N]."""

    name, op_type = "rotary", "FusedRotary"
    problem_type = RotaryProblem
    weight_axes = (1, 0)  # [K, N]
    takes_epilogue = False
    any_order = True
    rotates = True

    def anchors(self) -> Sequence[AnchorPattern]:
        """The rotation behind a product."""
        return (AnchorPattern((rotary_form.OP,), self._match, INTERNAL),)

    def _match(self, node: gs.Node) -> Match:
        """None where no product with a constant weight is rotated alone."""
        columns, table = node.inputs
        links = [Link(Step(ROTATE), table, (node,), node.outputs[0])]
        product = producer(columns)
        if product is not None and product.op == "Add" and not product.domain:
            biases = [each for each in product.inputs if isinstance(each, gs.Constant)]
            if len(biases) != 1 or len(biases[0].shape) != 1:
                return None
            links.insert(0, Link(Step(BIAS), biases[0], (product,), columns))
            product = next(p for each in product.inputs if (p := producer(each)) is not None)
        if product is None or product.op != "MatMul" or product.domain:
            return None
        x, weight = product.inputs
        dtype = DType.of(weight.dtype)
        if dtype is None or not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
            return None
        rotated = int(node.attrs["rotated_columns"])
        anchor = RotaryAnchor(self, product, x, weight, dtype, table=table, rotated=rotated)
        return anchor, tuple(links)

    def pointwise(self, anchor: Anchor) -> bool:
        """True: x is rows as they lie."""
        return True

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """x as it lies, in rows; the result as ONNX has it."""
        return (PLAIN if around.x.last else around.x), PLAIN

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> RotaryProblem:
        """The product of all leading dimensions' rows."""
        anchor, reads = _of(candidate.anchor), PLAIN if stored is None else stored.reads
        rows = math.prod(sizes(anchor.x)[:-1])
        *period, width = sizes(anchor.table)
        return RotaryProblem(
            rows,
            anchor.channels,
            reads.count(int(anchor.weight.shape[0])),
            anchor.dtype,
            candidate.out,
            candidate.chain,
            anchor.rotated,
            math.prod(period),
            width,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epilogue_params` and `rotated_columns`."""
        anchor, reads = _of(candidate.anchor), stored.reads
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue),
            [
                tensors.get(anchor.x, reads),
                *self.node_inputs(candidate, reads, stored.writes, tensors),
            ],
            {**candidate.parameters, "rotated_columns": anchor.rotated},
        )

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The number of columns that are rotated."""
        return {"rotated_columns": AttributeProto.INT}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """MatMul by the transposed weight, and the rotation of the first columns."""
        weight = body("Transpose", [body.load("weight")], perm=[1, 0])
        result = body("MatMul", [body.load("x"), weight])
        _, *names = self.inputs(signature)
        at = next(i for i, step in enumerate(signature.steps) if step.name == ROTATE)
        before, behind = signature.steps[:at], signature.steps[at + 1 :]
        result = epilogue(body, before, opset, result, names[:at])
        columns = body("Reshape", [body.given("rotated_columns", AttributeProto.INT), body.ints(1)])
        result = rotary_form.rotated(body, opset, result, body.load(names[at]), columns)
        return epilogue(body, behind, opset, result, names[at + 1 :])


def _of(anchor: Anchor) -> RotaryAnchor:
    assert isinstance(anchor, RotaryAnchor)  # the pattern makes no others
    return anchor
