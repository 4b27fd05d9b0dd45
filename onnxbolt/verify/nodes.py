"""Level 2: compares each of our nodes, on its actual inputs, with its function body in float64.

The limit is that of the kernel's arithmetic if the library runs. Otherwise it is that of the
function body, which rounds after every operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto

from onnxbolt import ops
from onnxbolt.dtypes import DType
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.library import ops_of
from onnxbolt.ops.base import Part
from onnxbolt.opspec import OpSpec, configs_of_node
from onnxbolt.verify.bounds import Bounded
from onnxbolt.verify.codes import is_code
from onnxbolt.verify.elementwise import compared, failed, same_bits
from onnxbolt.verify.limits import Arithmetic, published
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import Row
from onnxbolt.verify.rules import Analysis, Env
from onnxbolt.verify.segments import Segment
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from onnxbolt.verify.standard import Standard


class Nodes:
    """The analysis of one model's nodes."""

    def __init__(self, models: Models) -> None:
        self._models = models
        skeleton = models.candidate.skeleton
        self.measured: dict[str, None] = {}  # op types without a rule
        self._unknown: dict[
            str, None
        ] = {}  # op types without a rule that ONNX Runtime cannot run alone
        self._ops: dict[str, OpSpec] = {}
        if models.library is not None:
            self._ops = {op.name: op for op in ops_of(models.optimized)}
        functions = {f.name: f for f in skeleton.functions if f.domain == FUSED_DOMAIN}
        self._analysis = Analysis(Standard(skeleton), functions, self.measured)

    def notes(self) -> dict[str, None]:
        """Sentences about operators without a rule."""
        measured, unknown = (", ".join(sorted(names)) for names in (self.measured, self._unknown))
        notes = []
        if measured:
            notes.append(
                f"error limits behind {measured} were measured, by changing operands as much"
                " as rounding does"
            )
        if unknown:
            notes.append(
                f"error limits behind {unknown} are 16 roundings of the largest value,"
                " because no bound is known"
            )
        return dict.fromkeys(notes)

    def arithmetic(self, node: NodeProto) -> Arithmetic:
        """The arithmetic with which a node is computed."""
        op = self._ops.get(node.op_type) if node.domain == FUSED_DOMAIN else None
        if op is None:
            return Arithmetic(tf32=self._models.candidate.tf32, coarse=self._models.provider != CPU)
        if op.element.is_code:
            out = DType.F32 if op.output.is_code else op.output
            error = published(out.numpy, op.chain)
            return Arithmetic(out.numpy, published=error, codes=op.element)
        families = {config.family for config in configs_of_node(node)}
        rounding = [family.tensor_cores for family in families]  # fp32 to TF32
        tf32 = op.element is DType.F32 and any(rounding)
        error = published(op.element.numpy, op.chain)
        return Arithmetic(op.element.numpy, tf32, tf32 and all(rounding), error)

    def _rounds(self, node: NodeProto, values: Mapping[str, np.ndarray]) -> bool:
        """True if the node may round a sum to 16 bits in front of its result: that of a norm, which
        is stored or computed so by a function body."""
        if op := self._ops.get(node.op_type):
            return not op.element.is_code and op.element is not DType.F32
        return any(values[name].dtype == np.float16 for name in node.input if name in values)

    def analyse(self, nodes: Sequence[NodeProto], env: Env) -> bool:
        """Add the results of `nodes` to `env`, with bounds; False if ONNX Runtime cannot run an
        operator that has no rule."""
        for node in nodes:
            try:
                self._analysis.run([node], env, self.arithmetic(node))
            except RUNTIME_ERRORS:
                self._unknown[node.op_type] = None
                return False
        return True

    def inner(self, segment: Segment) -> list[str]:
        """Tensors inside a segment that our nodes read or write."""
        made = {name for node in segment.nodes for name in node.output if name}
        ours = [node for node in segment.nodes if node.domain == FUSED_DOMAIN]
        known = {tensor.stored for tensor in segment.writes}
        return sorted(
            {name for node in ours for name in (*node.input, *node.output) if name in made} - known
        )

    def rows(
        self,
        segment: Segment,
        operands: dict[str, np.ndarray],
        got: dict[str, np.ndarray],
        env: Env,
    ) -> Iterator[Row]:
        """One row for each output of each of our nodes. `env` is the segment's analysis, `got` the
        tensors that it computed."""
        for node in segment.nodes:
            if node.domain != FUSED_DOMAIN:
                continue
            if reason := misstated(
                node,
                {
                    name: x.value.shape
                    for name, x in env.items()
                    if name in {*node.input, *node.output}
                },
            ):
                yield failed(self._models, node.output[0], reason, "node", node.name)
            # it reads what the segment reads
            elif got.keys().isdisjoint(node.input) and node.output[0] in env:
                yield from (
                    self._row(node, name, got[name], env[name], operands) for name in node.output
                )
            else:
                yield from self._alone(node, operands | got, env)

    def _alone(self, node: NodeProto, values: dict[str, np.ndarray], env: Env) -> Iterator[Row]:
        """The rows of a node that follows others, run by itself on their results, because ONNX
        Runtime may have merged it with them."""
        given = {
            name: _retyped(values[name], env.get(name)) for name in node.input if name in values
        }
        own = {
            name: Bounded.of(given[name]) if name in given else env[name]
            for name in node.input
            if name
        }
        try:
            found = self._models.candidate.part([node], given, list(node.output))
            if not self.analyse([node], own):
                raise ValueError("its function has an operator without a reference implementation")
        except RUNTIME_ERRORS as error:
            yield failed(
                self._models,
                node.output[0],
                f"the optimized model does not run: {error}",
                "node",
                node.name,
            )
            return
        yield from (self._row(node, name, found[name], own[name], values) for name in node.output)

    def _row(
        self,
        node: NodeProto,
        name: str,
        got: np.ndarray,
        reference: Bounded,
        values: dict[str, np.ndarray],
    ) -> Row:
        expected = reference.value
        limit, given = (reference.absolute(error) for error in reference.errors)
        read = (values[each].dtype for each in node.input if each in values)
        if is_code(reference.dtype) or any(map(is_code, read)):
            limit = limit + given  # values in the middle of two codes have such limits
        around = next((list(a.ints) for a in node.attribute if a.name == "around"), None)
        if around is None:
            about = ("node", node.name, got.dtype)
            rounded = self._rounds(node, values)
            return compared(
                self._models, name, got, expected, limit, *about, given=given, rounded=rounded
            )
        begin, end = around[len(around) // 2 - 1], got.shape[-1] - around[-1]
        if expected.shape == got.shape:
            expected, limit = expected[..., begin:end], limit[..., begin:end]
        row = compared(
            self._models, name, got[..., begin:end], expected, limit, "node", node.name, got.dtype
        )
        if Part.of(node.op_type) is Part.NEXT and row.passed:
            after, before = (
                np.delete(a, np.s_[begin:end], -1) for a in (got, values[node.input[-1]])
            )
            if not same_bits(after, before, any_nan=self._models.library is None):
                return failed(
                    self._models,
                    name,
                    "it changed channels that other nodes write",
                    "node",
                    node.name,
                )
        return row


def misstated(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> str:
    """How `padding`, which kernels read and function bodies do not, contradicts the tensors'
    shapes, in words; empty if it is right."""
    op = ops.of_type(node.op_type)
    found = op.in_both_layouts(node) if op is not None else None
    if found is None or not all(name in shapes for name in found):
        return ""
    first, last = found
    values = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    stored, own = shapes[last][-1], shapes[first][1]
    if last == node.output[0] and (around := values.get("around")):
        stored -= around[len(around) // 2 - 1] + around[-1]
    if last == node.input[0] and (channels := values.get("channels")):
        stored = channels[1] - channels[0]
    told = values.get("padding", 0)
    return (
        f"attribute padding is {told}, but {stored} channels are stored for {own} real ones"
        if told != stored - own
        else ""
    )


def _retyped(values: np.ndarray, analysed: Bounded | None) -> np.ndarray:
    """`values` in the type that the tensor has in the model: sessions return bfloat16 as
    float32."""
    return (
        values.astype(ml_dtypes.bfloat16)
        if analysed is not None and analysed.dtype == ml_dtypes.bfloat16
        else values
    )
