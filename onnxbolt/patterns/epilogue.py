"""Recognizes nodes that continue an epilogue, by the patterns that the entries of epilogue steps
(onnxbolt/epilogues/) have as data.

x + c, x - c, x * c, x / c with a constant c become steps with a float32 vector [channels]; with a
tensor of x's shape in place of c they become a residual or a gate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import BIAS, EpilogueStep, Step, registered
from onnxbolt.epilogues.patterns import Conversion, Pattern, Tensor, Unary, Vector
from onnxbolt.graph.edit import scalar
from onnxbolt.graph.symbols import in_words
from onnxbolt.patterns.types import StepPattern

_Match = Link | tuple[Link, ...] | str | None


def step_patterns() -> Mapping[tuple[str, str], Sequence[StepPattern]]:
    """The patterns of all epilogue steps, by domain and operator."""
    return _step_patterns(registered())


@lru_cache(maxsize=1)
def _step_patterns(
    entries: tuple[EpilogueStep, ...],
) -> Mapping[tuple[str, str], Sequence[StepPattern]]:
    found: dict[tuple[str, str], list[StepPattern]] = defaultdict(list)
    for pattern in (pattern for entry in entries for pattern in patterns_of(entry)):
        for op in pattern.ops:
            found[pattern.domain, op].append(pattern)
    return dict(found)


def patterns_of(entry: EpilogueStep) -> Iterator[StepPattern]:
    """The patterns of a step's entry. Canonicalization replaces a step's formulas, which take
    several nodes, by one internal node of the step's name."""
    for pattern in entry.patterns:
        match = partial(_MATCHES[type(pattern)], entry, pattern)
        yield StepPattern((pattern.op,), match, pattern.domain)
    if entry.forms:
        yield StepPattern((entry.name,), partial(_unary, entry, Unary(entry.name)), INTERNAL)


def _unary(
    entry: EpilogueStep, pattern: Unary, node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> _Match:
    if node.inputs[0] is not tensor:
        return None
    params = _scalars(entry, node) if pattern.scalars else _attributes(entry, node)
    if isinstance(params, str):
        return params
    link = Link(Step(entry.name, params), None, (node,), node.outputs[0])
    if not pattern.bias or len(node.inputs) < 2 or not node.inputs[1].name:
        return link
    bias = node.inputs[1]
    if not isinstance(bias, gs.Constant):
        return f"a bias that is computed at run time: {bias.name}"
    vector = None if tensor.shape is None else channel_vector(bias, tensor, anchor)
    if vector is None:
        return f"a bias that is not a channel vector: {bias.name}"
    return Link(Step(BIAS), gs.Constant(bias.name, vector), (node,), node.outputs[0]), link


def _attributes(entry: EpilogueStep, node: gs.Node) -> tuple[float, ...]:
    return tuple(float(node.attrs.get(param.name, param.default)) for param in entry.params)


def _scalars(entry: EpilogueStep, node: gs.Node) -> tuple[float, ...] | str:
    """A step's parameters, which are further inputs of its node, or why they cannot be used."""
    found = [param.default for param in entry.params]
    for i, bound in enumerate(node.inputs[1 : 1 + len(found)]):
        if not bound.name:
            continue
        if not isinstance(bound, gs.Constant):
            return f"a bound that is computed at run time: {bound.name}"
        value = scalar(bound)  # also of shape [1], which ONNX Runtime accepts
        if value is None:
            return f"a bound that is not a scalar: {bound.name} {list(bound.shape)}"
        found[i] = value
    return tuple(found)


def _vector(
    entry: EpilogueStep, pattern: Vector, node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> _Match:
    other = _other(node, tensor)
    if not isinstance(other, gs.Constant):
        return None
    vector = channel_vector(other, tensor, anchor)
    if vector is None:
        return f"its constant is not a channel vector: {other.name} {list(other.shape)}"
    if node.inputs[0] is not tensor and not pattern.either_side:
        return None  # c - x and c / x
    operand = pattern.convert(vector)
    if isinstance(operand, str):
        return f"{operand}: {other.name}"
    # a detached constant: rewriting stores it under a name of its own
    constant = gs.Constant(other.name, operand.astype(np.float32))
    return Link(Step(entry.name), constant, (node,), node.outputs[0])


def _tensor(
    entry: EpilogueStep, pattern: Tensor, node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> _Match:
    other = _other(node, tensor) if anchor.op.adds_values else None
    if other is None or (isinstance(other, gs.Constant) and not _has_rows(other, tensor)):
        return None
    if not anchor.op.accepts(other, tensor):
        differs = "differs" if _known(other) and _known(tensor) else "may differ"
        return (
            f"its other operand's shape {differs} from the result's: {other.name}"
            f" {in_words(other.shape)} and {in_words(tensor.shape)}"
        )
    if other.dtype != tensor.dtype:
        return f"its other operand has another element type: {other.name} {other.dtype}"
    return Link(Step(entry.name), other, (node,), node.outputs[0])


def _known(tensor: gs.Tensor) -> bool:
    """True if all sizes are numbers."""
    return tensor.shape is not None and all(isinstance(size, int) for size in tensor.shape)


def _has_rows(constant: gs.Constant, tensor: gs.Tensor) -> bool:
    """True if a constant of the tensor's shape has more than a vector."""
    shape = list(constant.shape)
    return shape == list(tensor.shape) and np.prod(shape) > max(shape, default=1)


def _conversion(
    entry: EpilogueStep, pattern: Conversion, node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> _Match:
    if node.attrs.get("to") != pattern.to.onnx or pattern.to is anchor.dtype:
        return None
    return Link(Step(entry.name), None, (node,), node.outputs[0])


def _other(node: gs.Node, tensor: gs.Tensor) -> gs.Tensor | None:
    """The other operand of a node with two operands; None if both are `tensor`."""
    if tensor.shape is None or len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
        return None
    return node.inputs[1 if node.inputs[0] is tensor else 0]


def channel_vector(constant: gs.Constant, tensor: gs.Tensor, anchor: Anchor) -> np.ndarray | None:
    """`constant` as float32 [channels] if it varies along the output channels of `tensor` alone,
    otherwise None."""
    channels, rank = anchor.channels, len(tensor.shape)
    if not channels:  # their number varies
        return None
    axis = anchor.channel_axis(rank)
    shape = (1,) * (rank - len(constant.shape)) + tuple(constant.shape)
    if (
        len(shape) > rank
        or any(dim != 1 for i, dim in enumerate(shape) if i != axis)
        or shape[axis] not in (1, channels)
    ):
        return None
    return np.ascontiguousarray(
        np.broadcast_to(constant.values.astype(np.float32).reshape(-1), (channels,))
    )


_MATCHES: dict[type[Pattern], Callable[..., _Match]] = {
    Unary: _unary,
    Vector: _vector,
    Tensor: _tensor,
    Conversion: _conversion,
}
