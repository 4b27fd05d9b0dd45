"""Squeeze-and-excitation (Hu et al. 2018): x times a gate per channel, which two small products
make of the mean over the image (ONNX GlobalAveragePool or ReduceMean, Conv, Conv, Mul), and steps
behind it, such as the addition of x itself in text detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN, Form, kept
from onnxbolt.ops.base import (
    Described,
    FusedOp,
    Operation,
    Signature,
    Sizes,
    Stored,
    Surroundings,
    Tensors,
)
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.ops.squeeze_excite import pattern, weights
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import SqueezeExciteProblem
from onnxbolt.problems.squeeze_excite import ACTIVATIONS


class SqueezeExcite(FusedOp):
    """x [N, H, W, C], weights [S, C] and [C, S] with their biases to y [N, H, W, C]. The anchor's
    first links are the two activations; its constants are the first bias, the second weight, and
    its bias, None where there is none."""

    name, op_type = "squeeze_excite", "SqueezeExcite"
    problem_type = SqueezeExciteProblem
    weighted = True
    weight_axes = (1, 0)  # the result has the channels that the first weight [S, C, 1, 1] reads
    channels_last = True

    def anchors(self) -> Sequence[AnchorPattern]:
        """The mean."""
        return pattern.anchors(self)

    def keeps_channels(self, anchor: Anchor) -> bool:
        """True: it multiplies each by its gate."""
        return True

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """The result as x lies."""
        alignment = candidate.anchor.dtype.alignment if around.padded else 1
        form = kept(around.x, candidate.anchor.channels, alignment)
        return form, form

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> SqueezeExciteProblem:
        """S squeezed channels are without padding."""
        anchor = candidate.anchor
        n, c, h, w = sizes(anchor.x)
        form = stored.writes if stored is not None else PLAIN
        return SqueezeExciteProblem(
            n,
            h,
            w,
            form.count(c),
            int(anchor.weight.shape[0]),
            anchor.dtype,
            candidate.out,
            candidate.chain,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`."""
        anchor = candidate.anchor
        constants = weights.stored(anchor, stored.writes)
        return Operation(
            Signature(self, anchor.dtype, 4, candidate.epilogue),
            [
                tensors.get(anchor.x, stored.reads),
                *(tensors.constant(name, values) for name, values in constants),
                *(tensors.get(tensor, stored.writes) for tensor in candidate.tensors),
            ],
            candidate.parameters,
        )

    def inputs(self, signature: Signature) -> list[str]:
        """Both weights and their biases, and the tensors of the epilogue."""
        return ["weight", "squeeze_bias", "excite", "excite_bias", *_operands(signature)]

    def operands(self, chain: Sequence[str]) -> str:
        """The bias, the second weight and its bias, and those of the epilogue."""
        return "vwv" + super().operands(chain[ACTIVATIONS:])

    def positions(self, node: Described) -> list[Any]:
        """Each image has one gate."""
        return [node.output[0]]

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """x [N, H, W, C] times a gate [N, 1, 1, C], and the epilogue."""
        x = body.load("x")
        result = (
            body("ReduceMean", [x, body.ints(1, 2)], keepdims=0)
            if opset >= 18
            else body("ReduceMean", [x], axes=[1, 2], keepdims=0)
        )
        for step, weight, bias in zip(
            signature.steps[:ACTIVATIONS],
            ("weight", "excite"),
            ("squeeze_bias", "excite_bias"),
            strict=True,
        ):
            product = body("MatMul", [result, body("Transpose", [body.load(weight)], perm=[1, 0])])
            biased = body("Add", [product, body.convert(bias, DType.F32, body.dtype)])
            result = step.row.body(body, opset, biased, "", step.params)
        gate = body("Unsqueeze", [result, body.ints(1, 2)])
        steps = signature.steps[ACTIVATIONS:]
        return epilogue(body, steps, opset, body("Mul", [x, gate]), _operands(signature))


def _operands(signature: Signature) -> list[str]:
    """Names of the epilogue's tensors."""
    tensors = [step for step in signature.steps if step.row.operand]
    return [f"operand{i}" for i in range(len(tensors))]
