"""Gated linear units (Dauphin et al. 2017) as one product with twice the columns:

    act(x G + c) * (x U + d)

The packed weight has the columns of G and U in turns, 8 of each, so that a thread of a kernel holds
both factors of an element. Behind the product, steps in front of the gate have G's half alone; the
gate multiplies by U's, and further steps may follow. Two kernels would read x twice, and the second
one the first one's result.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Candidate, Link, Refusal
from onnxbolt.epilogues import BIAS, GATE, GATE_BIAS, MUL, Step
from onnxbolt.forms import PLAIN, Form, take
from onnxbolt.graph import weights
from onnxbolt.graph.edit import Derived
from onnxbolt.ops.base import Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.ops.gemm import Gemm
from onnxbolt.ops.products import ProductOp, operands
from onnxbolt.problems import GluProblem

TURN = 8  # rows of each weight that follow one another: columns of an instruction of tensor cores
_VECTORS = ((), (BIAS,))


class Glu(ProductOp):
    """x [.., K], weight [2 N, K] to y [.., N]. It takes the place of two GEMMs: the anchor is the
    product with G, and its only constant is U."""

    name, op_type = "glu", "FusedGlu"
    problem_type = GluProblem
    weight_axes = (1, 0)  # [K, N]
    any_order = True
    gates = 1

    def pointwise(self, anchor: Anchor) -> bool:
        """True: x is rows as they lie."""
        return True

    def combined(self, whole: Candidate, other: Candidate) -> Candidate | Refusal | None:
        """One product for the GEMM `whole`, which multiplies by the result of the GEMM `other`."""
        if any(c.anchor.op.name != Gemm.name for c in (whole, other)):
            return None
        at = next(
            (
                i
                for i, link in enumerate(whole.links)
                if link.step.name == MUL and link.operand is other.output
            ),
            None,
        )
        if at is None or any(len(c.widths) > 1 for c in (whole, other)):
            return None
        product = whole.links[at].nodes[0]
        if reason := _reason(whole, other, at):
            reason = f"its factors are not one product, because {reason}"
            return Refusal(product.name, product.op, reason, other.output.name, apart=True)
        first, second = (whole.anchor, whole.links[:at]), (other.anchor, other.links)
        if other.steps not in _VECTORS:  # it is the one with the activation
            first, second = second, first
        (anchor, before), (factor, bias) = first, second
        replaced = (factor.node, *(node for link in bias for node in link.nodes), product)
        step = Step(GATE_BIAS if bias else GATE)
        operand = bias[0].operand if bias else None
        gate = Link(step, operand, tuple(dict.fromkeys(replaced)), product.outputs[0])
        links = (*before, gate, *whole.links[at + 1 :])
        anchor = replace(anchor, op=self, constants=(factor.weight,))
        return Candidate(anchor, links, whole.originals, layers=(other, whole))

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """x as it lies, in rows; the result as ONNX has it."""
        return (PLAIN if around.x.last else around.x), PLAIN

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> GluProblem:
        """The product of all leading dimensions' rows."""
        anchor, reads = candidate.anchor, PLAIN if stored is None else stored.reads
        return GluProblem(
            math.prod(sizes(anchor.x)[:-1]),
            anchor.channels,
            reads.count(int(anchor.weight.shape[0])),
            anchor.dtype,
            candidate.out,
            candidate.chain,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`."""
        anchor, reads = candidate.anchor, stored.reads
        (factor,) = anchor.constants
        assert factor is not None  # `combined` has given it
        weight = tensors.packed(
            anchor.weight,
            (self, factor.name, reads.channels),
            lambda: _in_turns(anchor.weight, factor, reads),
        )
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue),
            [
                tensors.get(anchor.x, reads),
                weight,
                *operands(candidate, (stored.writes,), tensors),
            ],
            candidate.parameters,
        )

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Two MatMuls by the halves of the transposed weight, so that x may have any rank."""
        steps, (_, *names) = signature.steps, self.inputs(signature)
        weight, x = body("Transpose", [body.load("weight")], perm=[1, 0]), body.load("x")
        turns = body("Reshape", [weight, body.ints(0, -1, 2 * TURN)])
        first, second = (body("MatMul", [x, _half(body, turns, begin)]) for begin in (0, TURN))
        at = next(i for i, step in enumerate(steps) if step.row.gates)
        before, (gate, *after) = steps[:at], steps[at:]
        taken = sum(bool(step.row.operand) for step in before)
        result = epilogue(body, before, opset, first, names[:taken])
        if gate.row.operand:
            second = epilogue(body, (Step(BIAS),), opset, second, names[taken : taken + 1])
            taken += 1
        result = gate.row.body(body, opset, result, second, gate.params)
        return epilogue(body, after, opset, result, names[taken:])


def _reason(whole: Candidate, other: Candidate, at: int) -> str:
    """Why no kernel computes both as one product; "" where one does."""
    first, second = whole.anchor, other.anchor
    if first.x is not second.x:
        return "they have different inputs"
    if tuple(first.weight.shape) != tuple(second.weight.shape):
        return "they have different numbers of columns"
    if first.channels % TURN:
        return f"their columns are no multiple of {TURN}: {first.channels}"
    if other.steps not in _VECTORS and whole.steps[:at] not in _VECTORS:
        return "both have an activation"
    return ""


def _in_turns(gate: gs.Constant, factor: gs.Constant, reads: Form) -> np.ndarray | Derived:
    """[2 N, K] of two weights [K, N]; large ones are not kept in memory."""
    depth, columns = len(reads.channels or range(gate.shape[0])), int(gate.shape[1])
    shape, dtype = (2 * columns, depth), gate.dtype

    def joined() -> np.ndarray:
        rows = [take(each.values, reads.channels, 0).T for each in (gate, factor)]
        turns = np.stack([each.reshape(-1, TURN, depth) for each in rows], axis=1)
        return np.ascontiguousarray(turns.reshape(shape))

    large = math.prod(shape) * dtype.itemsize >= weights.LARGE
    return Derived(joined, dtype, shape) if large else joined()


def _half(body: Body, turns: str, begin: int) -> str:
    """[K, N] of [K, N / 8, 16]: 8 columns of each 16, from `begin` on."""
    ends = body.ints(begin), body.ints(begin + TURN), body.ints(2)
    return body("Reshape", [body("Slice", [turns, *ends]), body.ints(0, -1)])
