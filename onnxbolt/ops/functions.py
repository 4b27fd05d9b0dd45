"""Function bodies: each fused op type is also a model-local function of standard ONNX ops.

They are what a session without the custom-op library runs (ONNX, FunctionProto). A body is
interpreted at the model's own opset, and ONNX Runtime accepts one body per op type, so whatever
changes a body changes the name. Nor may a body of control flow have an op type of a graph around
it: ONNX Runtime inlines both with the same names for the tensors inside, and then confuses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from onnx import FunctionProto, NodeProto, helper

from onnxbolt import domains
from onnxbolt.ops.base import Part, Signature
from onnxbolt.ops.body import Body

DOMAIN = domains.FUSED


def build(signature: Signature, opset: int, around: Collection[str] = ()) -> FunctionProto:
    """The function of an op type, its name included, which is none of `around`."""
    body, op = Body(signature.dtype), signature.op
    if signature.sliced:
        _slice(body)
    result = op.body(body, signature, opset)
    if signature.part is not Part.WHOLE:
        result = _placed(body, signature, result)
    if not any(step.row.cast for step in signature.steps):
        body.convert(result, body.dtype, signature.dtype)
    body.nodes[-1].output[0] = "y"  # the result is always what the last node computes
    inputs = [
        "whole" if signature.sliced else "x",
        *op.inputs(signature),
        *(["written"] if signature.into else []),
    ]
    referenced = (
        *op.attributes(signature),
        *(["channels"] if signature.sliced else []),
        *(["around"] if signature.part.value else []),
    )
    return helper.make_function(
        DOMAIN,
        _name(signature, body.nodes, around),
        inputs,
        body.outputs,
        body.nodes,
        [helper.make_opsetid("", opset)],
        list(referenced),
    )


def _slice(body: Body) -> None:
    """x, some channels of the input."""
    channels = body.given("channels")
    begin, end = (body("Slice", [channels, body.ints(i), body.ints(i + 1)]) for i in (0, 1))
    body("Slice", ["whole", begin, end, body.ints(-1)], "x")


def _placed(body: Body, signature: Signature, result: str) -> str:
    """Among the other channels, which stay as they are: x + -0 is x, while x + 0 would make 0 of
    -0."""
    around = body.given("around")
    if not signature.into:
        return body("Pad", [result, around])
    return body("Add", [body.load("written"), body("Pad", [result, around, body("Const", -0.0)])])


def _name(signature: Signature, nodes: Sequence[NodeProto], around: Collection[str]) -> str:
    name = "_".join(
        [
            *_words(signature, nodes),
            *(["sliced"] if signature.sliced else []),
            *filter(None, [signature.part.value]),
        ]
    )
    while name in around:
        name += "_inner"
    return name


def _words(signature: Signature, nodes: Sequence[NodeProto]) -> list[str]:
    op, steps = signature.op, (step.name for step in signature.steps)
    words = [op.op_type, *op.words(signature), *steps, signature.dtype.value]
    if signature.padding:
        words.append(f"pad{signature.padding}")
    if signature.rank in (3, 5):
        words.append(f"{signature.rank - 2}d")
    if (x := signature.nchw_input) is not None:
        words += ["nchw"] if x is signature.dtype else ["nchw", x.value]
    if signature.to_nchw:
        words.append("to_nchw")
    if any(step.params and not step.row.given for step in signature.steps):
        text = b"".join(node.SerializeToString(deterministic=True) for node in nodes)
        words.append(hashlib.sha256(text).hexdigest()[:6])
    return words
