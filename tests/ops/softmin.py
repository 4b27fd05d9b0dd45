"""A fused op from outside of the package: softmin, the softmax of -x over the last axis, times a
factor. It has no C++ part, so that nothing but function bodies runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.archs import Arch
from onnxbolt.candidates import Anchor, Candidate, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.extensions import Extension
from onnxbolt.families.base import Family, KernelConfig, tile_size
from onnxbolt.families.row import at
from onnxbolt.graph.edit import scalar
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body
from onnxbolt.patterns.types import AnchorPattern, Match
from tests.extending.softmax.problem import ScaledSoftmaxProblem


@dataclass(frozen=True)
class SoftminProblem(ScaledSoftmaxProblem):
    """y[M, C] = scale softmax(-x[M, C]) of each row."""

    operation = "softmin"

    @property
    def shape(self) -> str:
        return f"softmin {self.m}x{self.c}"

    def onnxruntime_us(self, arch: Arch) -> float:
        """Three kernels, each through memory."""
        return 3 * (arch.launch_us + self.bytes_moved / bandwidth(arch) * US)


@dataclass(frozen=True, kw_only=True)
class SoftminConfig(KernelConfig):
    """Threads of a block."""

    threads: int = at("tile_m", default=256, sound=tile_size)


class SoftminRows(Family[SoftminConfig]):
    """A block to each row."""

    number, name, config = 1801, "softmin_rows", SoftminConfig
    takes = ("element",)
    problems, kinds = (SoftminProblem,), frozenset({"softmin"})
    tensor_cores = False

    def candidates(self, problem: SoftminProblem, arch: Arch) -> Sequence[SoftminConfig]:
        """Two sizes of blocks."""
        return tuple(SoftminConfig(arch=arch.number, threads=n) for n in (128, 256))

    def predicted_us(self, problem: SoftminProblem, config: SoftminConfig, arch: Arch) -> float:
        """Once through memory."""
        return arch.launch_us + problem.bytes_moved / arch.bandwidth * US + config.threads * 1e-4


class Softmin(FusedOp):
    """x [.., N] to y [.., N] (ONNX: Neg, Softmax over the last axis, Mul by a scalar)."""

    name, op_type = "softmin", "FusedSoftmin"
    problem_type = SoftminProblem

    def anchors(self) -> Sequence[AnchorPattern]:
        """The Neg."""
        return (AnchorPattern(("Neg",), self._match),)

    def _match(self, node: gs.Node) -> Match:
        x = node.inputs[0]
        softmax = _reader(node.outputs[0], "Softmax")
        if softmax is None or not x.shape or not isinstance(x.shape[-1], int):
            return None
        if softmax.attrs.get("axis", -1) not in (-1, len(x.shape) - 1):
            return Refusal(node.name, node.op, "its softmax is over another axis than the last")
        mul = _reader(softmax.outputs[0], "Mul")
        factor = mul.inputs[1] if mul is not None else None
        dtype = DType.of(x.dtype)
        if dtype is None or factor is None or scalar(factor) is None:
            return None
        return Anchor(self, node, x, None, dtype, (factor,), (softmax, mul)), ()

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> SoftminProblem:
        """All leading axes are rows."""
        *rows, n = sizes(candidate.anchor.x)
        return SoftminProblem(math.prod(rows), n, candidate.anchor.dtype, candidate.out)

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `scale`."""
        anchor = candidate.anchor
        x = tensors.get(anchor.x, stored.reads)
        return Operation(Signature(self, anchor.dtype), [x], {"scale": scalar(anchor.constants[0])})

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The factor."""
        return {"scale": AttributeProto.FLOAT}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The nodes that it takes the place of, with the factor as an attribute."""
        y = body("Softmax", [body("Neg", [body.load("x")])], axis=-1)
        scale = body.convert(body.given("scale", AttributeProto.FLOAT), DType.F32, body.dtype)
        return body("Mul", [y, scale])


def _reader(tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The node that alone reads `tensor`, if it is of this operator. The matcher itself sees to
    values inside of the op that are outputs of the graph."""
    readers = tensor.outputs
    return readers[0] if len(readers) == 1 and readers[0].op == op else None


EXTENSION = Extension(name="softmins", ops=(Softmin(),), families=(SoftminRows(),))
