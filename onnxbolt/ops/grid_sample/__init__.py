"""Images sampled at given positions in NHWC (ONNX GridSample)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, Step
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST, PLAIN
from onnxbolt.ops.base import FusedOp, Operation, Replacement, Signature, Stored, Tensors
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.sampling import OUTSIDE, SAMPLE_MODES

_WORDS = {"bilinear": "linear"}  # words of opsets before 20


@dataclass(frozen=True)
class Grid:
    """How a GridSample samples, in ONNX's words. `in_f32`: the positions are float32, else of the
    image's type."""

    mode: str
    outside: str  # padding_mode
    align_corners: bool
    in_f32: bool

    @property
    def numbers(self) -> list[int]:
        """The values of the attribute `sampling`."""
        found = SAMPLE_MODES.index(self.mode), OUTSIDE.index(self.outside)
        return [*found, int(self.align_corners)]

    @property
    def words(self) -> list[str]:
        """The words in the op type's name."""
        words = [self.mode, self.outside, *(["aligned"] if self.align_corners else [])]
        return [*words, *(["grid", "f32"] if self.in_f32 else [])]


def grid_of(node: gs.Node) -> Grid | None:
    """How a kernel samples as the node does; None where it does not: by cubic weights."""
    attributes = node.attrs
    mode = attributes.get("mode", "linear")
    found = _WORDS.get(mode, mode), attributes.get("padding_mode", "zeros")
    if found[0] not in SAMPLE_MODES or found[1] not in OUTSIDE:
        return None
    return Grid(*found, bool(attributes.get("align_corners", 0)), True)


def sampled(body: Body, x: str, grid: str, how: Grid, opset: int) -> str:
    """The node on NCHW, in float32, which ONNX Runtime has it for."""
    mode = how.mode if opset >= 20 or how.mode == "nearest" else "bilinear"
    return body(
        "GridSample",
        [x, grid],
        mode=mode,
        padding_mode=how.outside,
        align_corners=int(how.align_corners),
    )


class GridSample(FusedOp):
    """x [N, H, W, C] and a grid [N, P, Q, 2] to y [N, P, Q, C]; variants are `Grid`s. ONNX Runtime
    has it in float32 alone: x may be what a Cast to that reads."""

    name, op_type = "grid_sample", "GridSample_nhwc"
    channels_last = True
    operators = ("GridSample",)
    takes_cast = True

    def replacement(self, node: gs.Node) -> Replacement | None:
        """How it samples; the grid stays as it is."""
        grid = grid_of(node)
        x, at = node.inputs[0].shape, node.inputs[1]
        known = x is not None and len(x) == 4 and at.dtype == np.float32
        return Replacement({"sampling": grid.numbers}, grid, (at,)) if grid and known else None

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """The kernel reads the 16-bit image that a Cast makes float32, and writes its type where a
        Cast back follows."""
        found = super().operation(candidate, stored, tensors)
        x, grid = tensors.before_cast(found.inputs[0]), candidate.anchor.node.inputs[1]
        dtype = DType.of(x.dtype)
        assert dtype is not None  # the layout rule has looked, and `before_cast` does
        out = candidate.out
        steps = () if out is dtype else (Step(CASTS[out]),)
        signature = Signature(self, dtype, 4, steps, variant=found.signature.variant)
        return Operation(signature, [x, tensors.get(grid, PLAIN)], found.attributes)

    def inputs(self, signature: Signature) -> list[str]:
        """The grid."""
        return ["grid"]

    def letters(self, signature: Signature) -> str:
        """Its type."""
        return "f" if _grid(signature).in_f32 else "t"

    def words(self, signature: Signature) -> Sequence[str]:
        """How it samples."""
        return _grid(signature).words

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """GridSample of NCHW in float32."""
        x = body.widen(body.load("x"))
        x = body("Transpose", [x], perm=LAST_TO_FIRST[4])
        result = sampled(body, x, "grid", _grid(signature), opset)
        result = body("Transpose", [result], perm=FIRST_TO_LAST[4])
        return epilogue(body, signature.steps, opset, result)


def _grid(signature: Signature) -> Grid:
    assert isinstance(signature.variant, Grid)  # each of its signatures has one
    return signature.variant
