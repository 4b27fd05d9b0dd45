"""Decides which nodes stay in fp32, and why.

The nodes are visited once, in topological order. A node stays in fp32 for one of six reasons: its
operator (table `KEPT`, no kernel, another domain); a constant that 16 bits cannot represent; input
values beyond fp16's range; integers converted to floats (fp16 represents integers only up to 2048
exactly); answers that it makes behind the last product (`answers`); or neighbours that all stay, so
that converting the node would only add Casts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, steps_of
from onnxbolt.forms import FIRST_TO_LAST
from onnxbolt.graph.exporter import INTERNAL_DOMAIN
from onnxbolt.graph.order import in_order
from onnxbolt.graph.volumes import axes_of, is_of_images
from onnxbolt.precision import answers, ops
from onnxbolt.precision.constants import LARGEST, Constants
from onnxbolt.precision.kernel_table import Kernels
from onnxbolt.sampling import resampled

_TYPE = {DType.F16: "tensor(float16)", DType.BF16: "tensor(bfloat16)"}
COUNTS = "works on integers (or other types) that 16 bits represent exactly only while they"
" are small"
BETWEEN_CODES = "computed in fp32 between codes"
BETWEEN = "stands between operations that stay in fp32"


@dataclass(frozen=True)
class Kept:
    """A node that stays in fp32. Its reason reads "general reason: names and numbers"; the second
    part may be missing."""

    node: str
    op: str
    reason: str
    body: str = ""  # the body of control flow that the node is in; empty for the main graph


def is_float(tensor: gs.Tensor) -> bool:
    """True if the tensor is fp32; no other type is ever converted."""
    return bool(tensor.name) and tensor.dtype == np.float32


def reads_any(node: gs.Node) -> bool:
    """True if the node accepts any float type and outputs no floats, so that it works in either
    type without a conversion."""
    return (
        domain_of(node) == ""
        and node.op in ops.ANY_INPUT
        and not any(is_float(t) for t in node.outputs)
    )


def domain_of(node: gs.Node) -> str:
    """The domain's canonical name: "" for ai.onnx."""
    return "" if node.domain in (None, "", "ai.onnx") else str(node.domain)


@lru_cache(maxsize=4096)
def _slots(op: str, opset: int, low: DType, inputs: bool) -> tuple[tuple[bool, ...], bool]:
    """For each formal parameter of an ONNX operator, True if its type may be `low`; and True if the
    last parameter repeats."""
    schema = onnx.defs.get_schema(op, opset, "")
    allowed = {
        constraint.type_param_str: set(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    formals = schema.inputs if inputs else schema.outputs
    fits = tuple(
        _TYPE[low] in allowed.get(formal.type_str, {formal.type_str}) for formal in formals
    )
    return (
        fits,
        bool(formals) and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic,
    )


def may_be_low(node: gs.Node, index: int, low: DType, opset: int, inputs: bool = True) -> bool:
    """True if ONNX, or our own kernel at any opset, lets input or output `index` have the type
    `low`."""
    if domain_of(node) == INTERNAL_DOMAIN:
        return True
    if inputs and index in ops.FP32_INPUTS.get(node.op, ()):
        return False
    if low is DType.BF16 and (
        node.op in ops.POOLING
        or node.op in ops.RESAMPLING
        or ops.needs_epilogue(node.op)
        or node.op in ("Conv", "ConvTranspose")
    ):
        return True
    fits, variadic = _slots(node.op, opset, low, inputs)
    return fits[min(index, len(fits) - 1) if variadic else index]


class Decision:
    """The state of the walk; `reasons` has the reason of each node that touches fp32 and stays in
    it."""

    def __init__(
        self,
        graph: gs.Graph,
        low: DType,
        constants: Constants,
        kernels: Kernels,
        between: frozenset[gs.Node] = frozenset(),
    ) -> None:
        self.between = between
        self.low, self.constants, self.opset, self.kernels = (
            low,
            constants,
            int(graph.opset),
            kernels,
        )
        self.answering = answers.answering(graph)
        self.reasons: dict[gs.Node, str] = {}
        self.converted: set[gs.Node] = set()
        # tensor name -> where its values beyond fp16's range come from
        self._carried: dict[str, str] = {}
        # names of fp32 tensors that hold integers, or are computed from such tensors only
        self._counting: set[str] = set()
        # names of 16-bit tensors that a kernel of ours may write behind steps of its epilogue
        self._before_steps: set[str] = set()
        nodes = [
            node
            for node in in_order(graph)
            if any(is_float(t) for t in (*node.inputs, *node.outputs)) and not reads_any(node)
        ]
        for node in nodes:
            self._visit(node)
        self._absorb(nodes)

    def kept(self, graph: gs.Graph) -> list[Kept]:
        """The nodes that stay in fp32, with their reasons, in the graph's order."""
        return [
            Kept(node.name, node.op, self.reasons[node])
            for node in graph.nodes
            if node in self.reasons
        ]

    def _visit(self, node: gs.Node) -> None:
        reason = (
            (BETWEEN_CODES if node in self.between else "")
            or self._structural(node)
            or self._constant(node)
            or self._received(node)
            or self._squares(node)
        )
        counts = not reason and self._counts(node)
        if counts:
            reason = COUNTS
            self._counting.update(t.name for t in node.outputs)
        if not reason and node in self.answering:
            reason = answers.REASON
        if reason:
            self.reasons[node] = reason
        else:
            self.converted.add(node)
            if node.op in ops.BEFORE_STEPS or self._begins_steps(node):
                self._before_steps.update(t.name for t in node.outputs)
        cause = "" if self.low is not DType.F16 else self._cause(node)
        if cause and not self._bounds(node):
            self._carried.update((t.name, cause) for t in node.outputs if is_float(t))

    def _structural(self, node: gs.Node) -> str:
        """The reason that follows from the operator itself; empty if there is none."""
        if domain_of(node) == INTERNAL_DOMAIN:
            known = node.op in EPILOGUES or ops.is_safe(node.op)
            return "" if known else f"unknown internal operation {node.op}"
        if domain_of(node):
            return f"an operation of another domain: {node.domain}"
        if node.op in ops.KEPT:
            return ops.KEPT[node.op]
        if node.attrs.get("reduction", "none") != "none":
            return ops.COMBINES
        if any(t.name and t.dtype is None for t in (*node.inputs, *node.outputs)):
            return "the type of one of its tensors is not known"
        if not self._has_kernel(node):
            return f"ONNX Runtime {self.kernels.release} has no {self.low.value} CUDA kernel"
        if not ops.is_safe(node.op):
            return f"not known to be accurate in {self.low.value}"
        if not self._is_declared(node):
            return f"ONNX does not define it for {self.low.value} at opset {self.opset}"
        return ""

    def _is_declared(self, node: gs.Node) -> bool:
        def any_of(tensors: list[gs.Tensor], inputs: bool) -> bool:
            return any(
                is_float(t) and may_be_low(node, i, self.low, self.opset, inputs)
                for i, t in enumerate(tensors)
            )

        return any_of(node.inputs, True) or any_of(node.outputs, False)

    def _has_kernel(self, node: gs.Node) -> bool:
        return self.kernels.has(node.op, self.opset, self.low) or self._ours(node)

    def _ours(self, node: gs.Node) -> bool:
        """True if the node becomes a fused node or a part of one, so that ONNX Runtime's kernels do
        not matter."""
        if node.op == "Conv":
            weight = node.inputs[1]
            groups = node.attrs.get("group", 1)
            if not isinstance(weight, gs.Constant) or len(weight.shape) not in FIRST_TO_LAST:
                return False
            if not is_of_images(axes_of(node)):  # older architectures have no kernel
                return False
            depthwise = tuple(weight.shape[:2]) == (groups, 1)
            return (
                groups == 1
                or depthwise
                or grouped.serves(groups, weight.shape[1] * groups, weight.shape[0], self.low)
            )
        if node.op == "ConvTranspose":
            weight = node.inputs[1]
            if not isinstance(weight, gs.Constant) or len(weight.shape) not in FIRST_TO_LAST:
                return False
            whole = weight.shape[1] % self.low.alignment == 0
            return whole and node.attrs.get("group", 1) == 1
        if node.op in ops.POOLING:
            return len(node.outputs) == 1 and _is_image(node.inputs[0])
        if node.op in ops.RESAMPLING or node.op == "BatchNormalization":
            return _is_image(node.inputs[0]) and self._follows(node) and _has_form(node)
        return ops.needs_epilogue(node.op) and self._continues(node)

    def _follows(self, node: gs.Node) -> bool:
        """True if a node in 16 bits computes the first input."""
        return any(source in self.converted for source in node.inputs[0].inputs)

    def _begins_steps(self, node: gs.Node) -> bool:
        """True for a step of an epilogue, or one that may begin a run of such nodes of images."""
        return _is_step(node) and (self._continues(node) or _is_image(node.outputs[0]))

    def _continues(self, node: gs.Node) -> bool:
        """True if the node may be the next step of an epilogue."""
        return any(t.name in self._before_steps and len(t.outputs) == 1 for t in node.inputs)

    def _constant(self, node: gs.Node) -> str:
        for constant in self._data_constants(node):
            if hazard := self.constants.hazard(constant):
                return f"a constant that fp16 cannot represent: {constant.name} {hazard}"
        return ""

    def _data_constants(self, node: gs.Node) -> Iterator[gs.Constant]:
        """The constants that would be converted with the node."""
        if domain_of(node) not in ("", INTERNAL_DOMAIN) or node.op in ops.KEPT:
            return
        # ONNX Runtime has operators of its own in this domain, such as SimplifiedLayerNormalization
        if domain_of(node) == "" and not onnx.defs.has(node.op, self.opset, ""):
            return
        for index, tensor in enumerate(node.inputs):
            if (
                isinstance(tensor, gs.Constant)
                and is_float(tensor)
                and may_be_low(node, index, self.low, self.opset)
            ):
                yield tensor

    def _received(self, node: gs.Node) -> str:
        cause = next((self._carried[t.name] for t in node.inputs if t.name in self._carried), "")
        return f"its input may exceed fp16's range: {cause}" if cause else ""

    def _squares(self, node: gs.Node) -> str:
        same = (
            node.op == "Mul"
            and self.low is DType.F16
            and node.inputs[0].name == node.inputs[1].name
        )
        return "squares its input" if same else ""

    def _counts(self, node: gs.Node) -> bool:
        if (
            node.op == "Cast"
            and any(is_float(t) for t in node.outputs)
            and not is_float(node.inputs[0])
        ):
            source = node.inputs[0].dtype
            return not isinstance(source, np.dtype) or source.name not in (
                *ops.EXACT,
                self.low.numpy.name,
            )
        variables = [t.name for t in node.inputs if is_float(t) and not isinstance(t, gs.Constant)]
        return (
            node.op not in ops.ANCHORS
            and bool(variables)
            and all(name in self._counting for name in variables)
        )

    def _cause(self, node: gs.Node) -> str:
        """The values beyond fp16's range that the node's outputs may have, in words; empty if there
        are none."""
        for constant in self._data_constants(node):
            if self.constants.hazard(constant) and self.constants.spreads(constant):
                return f"{constant.name} {self.constants.hazard(constant)}"
        for tensor in node.inputs:
            if tensor.name in self._carried:
                return self._carried[tensor.name]
        if (
            domain_of(node) == "" and node.op in ops.WIDENING and not _shrinks(node)
        ) or self._squares(node):
            return f"the result of {node.op} {node.name}"
        return ""

    def _bounds(self, node: gs.Node) -> bool:
        """True if the outputs are within fp16's range for all inputs."""
        if ops.is_bounding(node.op):
            return True
        # its outputs are means of values, whatever is added to scores
        if node.op == "Attention" and domain_of(node) in ("", INTERNAL_DOMAIN):
            return not self._is_wide(node.inputs[2])
        # a large divisor makes small results; a sum of large values divides them back into range
        if node.op == "Div":
            numerator, denominator = (self._is_wide(t) for t in node.inputs)
            return denominator or not numerator
        if node.op == "Clip" and not any(self._is_wide(t) for t in node.inputs[1:]):
            bounds = [t.values for t in node.inputs[1:3] if isinstance(t, gs.Constant)]
            return len(bounds) == 2 and all(abs(float(b)) <= LARGEST for b in bounds)
        return False

    def _is_wide(self, tensor: gs.Tensor) -> bool:
        if isinstance(tensor, gs.Constant):
            return is_float(tensor) and bool(self.constants.hazard(tensor))
        return tensor.name in self._carried

    def _absorb(self, nodes: list[gs.Node]) -> None:
        """Keep nodes in fp32 if all their neighbours stay, because converting them would only add
        Casts; anchors are worth the Casts."""
        before = {node for node in nodes if node in self.reasons}
        after = set(before)
        for node in nodes:
            sources = [
                s
                for t in node.inputs
                if is_float(t) and not isinstance(t, gs.Constant)
                for s in t.inputs or [None]
            ]
            if _light(node) and sources and all(s in before for s in sources):
                before.add(node)
        for node in reversed(nodes):
            users = [user for t in node.outputs for user in t.outputs]
            if _light(node) and users and all(user in after for user in users):
                after.add(node)
        for node in nodes:
            if node in self.converted and node in before and node in after:
                self.reasons[node] = BETWEEN
                self.converted.discard(node)


def _is_step(node: gs.Node) -> bool:
    """True if the node may become a step of an epilogue."""
    if domain_of(node) == INTERNAL_DOMAIN:
        return node.op in EPILOGUES
    return not domain_of(node) and bool(steps_of(node.op))


def _is_image(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) == 4


def _has_form(node: gs.Node) -> bool:
    """True if our kernels have the attributes of a Resize, or the constants of a
    BatchNormalization, which becomes a factor and a sum; other operators have but one form."""
    if node.op == "Resize":
        return resampled(node.attrs) is not None
    constants = all(isinstance(tensor, gs.Constant) for tensor in node.inputs[1:])
    return node.op != "BatchNormalization" or (constants and len(node.outputs) == 1)


def _light(node: gs.Node) -> bool:
    return node.op not in ops.ANCHORS and domain_of(node) == ""


def _shrinks(node: gs.Node) -> bool:
    """True for a power whose exponent is known to be at most 1, such as a square root and a
    reciprocal."""
    exponent = node.inputs[1] if node.op == "Pow" else None
    return isinstance(exponent, gs.Constant) and bool(
        np.all(np.asarray(exponent.values, dtype=np.float64) <= 1)
    )
