"""Merge parallel convolutions of one tensor whose results are added (structural
re-parameterization).

    (V * x + a) + (W * x + b)  =  (V + W) * x + (a + b)

with W padded by zeros to the window and the groups of V, turns the blocks that RepVGG (Ding et al.
2021: 3x3, 1x1, and a BatchNormalization alone) and MobileOne (Vasu et al. 2023: several KxK, 1x1,
BatchNormalization; depthwise too) are trained with into the convolution that they are deployed as.
A BatchNormalization alone is a depthwise 1x1 convolution. So is x itself, but it joins only where
two others are merged (QARepVGG): beside one convolution it is a residual, which the kernels add as
exactly.

Only what costs nothing is merged: all of a branch's taps and connected channels must be among those
of the widest, so 1x7 and 7x1 stay two. Weights are added in float64 and rounded once. Other addends
of the sum stay, and so do branches that something else reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import affine, batchnorm
from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    insert,
    is_float,
    pinned,
    producer,
    remove,
    sole_use,
)
from onnxbolt.graph.names import fresh

# the attributes that conv_form leaves on a Conv
_COMPLETE = {"dilations", "group", "kernel_shape", "pads", "strides"}


@dataclass(frozen=True, eq=False)
class _Branch:
    """One addend as a convolution of x [N, C, ..] with `channels` outputs.

    For each spatial axis: `taps` are the offsets in x that it reads, from output position times
    stride; `slack` is padding less (kernel - 1) * dilation, by which the output's size differs from
    the input's.
    """

    addend: gs.Tensor
    nodes: tuple[gs.Node, ...]  # the Conv or BatchNormalization; none where the addend is x itself
    x: gs.Tensor
    channels: int
    group: int
    strides: tuple[int, ...]
    taps: tuple[range, ...]
    slack: tuple[int, ...]
    # weight [K, C/group, *kernel] and bias [K] in float64
    parameters: Callable[[], tuple[np.ndarray, np.ndarray]]

    @property
    def work(self) -> int:
        """Multiplications per input channel and output position."""
        return self.channels // self.group * int(np.prod([len(taps) for taps in self.taps]))


@dataclass(frozen=True)
class _Sum:
    """A tree of Adds: its last node, all its nodes, and what they add up."""

    root: gs.Node
    nodes: tuple[gs.Node, ...]
    addends: tuple[gs.Tensor, ...]


def run(graph: gs.Graph) -> int:
    """Merge the parallel convolutions of each sum; returns how many convolutions were made."""
    return sum(
        any(
            _merge(graph, total, branches[start:])
            for branches in _parallel(total)
            for start in range(len(branches))
        )
        for total in list(_sums(graph))
    )


def unmerged(graph: gs.Graph) -> list[str]:
    """After `run`: a line for each parallel branch that was not merged, with the reason."""
    return [
        f"branches: {node.name} is not merged with the parallel convolution, because {reason}"
        for total in _sums(graph)
        for branches in _parallel(total)
        for branch, reason in _matched(graph, branches)[1]
        for node in branch.nodes
    ]


def _sums(graph: gs.Graph) -> Iterator[_Sum]:
    for node in graph.nodes:
        if _adds(node) and not _adds(sole_use(graph, node.outputs[0])):
            nodes, addends, pending = [], [], [node.outputs[0]]
            while pending:
                tensor = pending.pop()
                maker = producer(tensor)
                if maker is not None and (
                    maker is node or (_adds(maker) and sole_use(graph, tensor) is not None)
                ):
                    nodes.append(maker)
                    pending += reversed(maker.inputs)
                else:
                    addends.append(tensor)
            yield _Sum(node, tuple(nodes), tuple(addends))


def _adds(node: gs.Node | None) -> bool:
    return node is not None and node.op in ("Add", "Sum") and not node.domain


def _parallel(total: _Sum) -> list[list[_Branch]]:
    """For each x that a convolution and another branch of the sum read: all branches of x, the
    widest convolution first."""
    convolutions = [
        branch for tensor in total.addends if (branch := _convolution(tensor)) is not None
    ]
    groups = []
    for x in {branch.x.name: branch.x for branch in convolutions}.values():
        found = sorted(
            (branch for branch in convolutions if branch.x is x), key=lambda branch: -branch.work
        )
        found += [
            branch
            for tensor in total.addends
            if (branch := _pointwise(tensor, found[0])) is not None
        ]
        if sum(len(branch.nodes) for branch in found) > 1:
            groups.append(found)
    return groups


def _convolution(tensor: gs.Tensor) -> _Branch | None:
    """The Conv with constant weights that computes `tensor`, if its attributes are those that
    conv_form leaves."""
    node = producer(tensor)
    if node is None or node.op != "Conv" or node.domain or set(node.attrs) != _COMPLETE:
        return None
    given = [t for t in node.inputs[1:] if t.name]
    if not all(isinstance(t, gs.Constant) and is_float(t) for t in given):
        return None
    attrs = node.attrs
    axes = len(attrs["kernel_shape"])
    begins, ends = attrs["pads"][:axes], attrs["pads"][axes:]
    reaches = [
        (kernel - 1) * dilation
        for kernel, dilation in zip(attrs["kernel_shape"], attrs["dilations"], strict=True)
    ]
    taps = tuple(
        range(-begin, reach - begin + 1, dilation)
        for begin, reach, dilation in zip(begins, reaches, attrs["dilations"], strict=True)
    )
    slack = tuple(
        begin + end - reach for begin, end, reach in zip(begins, ends, reaches, strict=True)
    )
    return _Branch(
        tensor,
        (node,),
        node.inputs[0],
        given[0].shape[0],
        attrs["group"],
        tuple(attrs["strides"]),
        taps,
        slack,
        partial(_weight_and_bias, *given),
    )


def _weight_and_bias(
    weight: gs.Constant, bias: gs.Constant | None = None
) -> tuple[np.ndarray, np.ndarray]:
    values = weight.values.astype(np.float64)
    return values, np.zeros(len(values)) if bias is None else bias.values.astype(np.float64)


def _pointwise(tensor: gs.Tensor, beside: _Branch) -> _Branch | None:
    """x itself or a BatchNormalization of x, as a depthwise 1x1 convolution; x is the input of the
    convolution `beside`."""
    axes, channels = len(beside.taps), beside.nodes[0].inputs[1].shape[1] * beside.group
    node = None if tensor is beside.x else producer(tensor)
    if tensor is not beside.x and (
        node is None
        or node.op != "BatchNormalization"
        or node.domain
        or node.inputs[0] is not beside.x
    ):
        return None
    found = (
        (np.ones(channels), np.zeros(channels)) if node is None else batchnorm.scale_and_shift(node)
    )
    if found is None or len(found[0]) != channels or channels != beside.channels:
        return None
    scale, shift = found
    return _Branch(
        tensor,
        () if node is None else (node,),
        beside.x,
        channels,
        channels,
        (1,) * axes,
        (range(1),) * axes,
        (0,) * axes,
        lambda: (scale.reshape(channels, 1, *[1] * axes), shift),
    )


def _merge(graph: gs.Graph, total: _Sum, branches: Sequence[_Branch]) -> bool:
    merged = _matched(graph, branches)[0]
    parameters = _summed(merged) if merged else None
    if parameters is None:
        return False
    _replace(graph, total, merged, *parameters)
    return True


def _matched(
    graph: gs.Graph, branches: Sequence[_Branch]
) -> tuple[list[_Branch], list[tuple[_Branch, str]]]:
    """The branches that can be merged into one convolution, the widest first (none, or at least two
    that compute), and why the others cannot."""
    merged: list[_Branch] = []
    refused = []
    for branch in branches:
        reason = _unusable(graph, branch) or (_misfit(merged[0], branch) if merged else None)
        if reason:
            refused.append((branch, reason))
        elif merged or (branch.nodes and branch.nodes[0].op == "Conv"):
            merged.append(branch)
    if sum(len(branch.nodes) for branch in merged) < 2:
        return [], refused
    if _summed(merged) is None:
        return [], [
            *refused,
            *(
                (branch, f"the sum of their weights exceeds the range of {merged[0].x.dtype}")
                for branch in merged
            ),
        ]
    return merged, refused


def _unusable(graph: gs.Graph, branch: _Branch) -> str | None:
    """Why a branch cannot be merged with any other."""
    if not branch.nodes or sole_use(graph, branch.addend) is not None:
        return None
    return (
        "its result is a graph output"
        if pinned(graph, branch.addend)
        else "its result has other consumers"
    )


def _misfit(widest: _Branch, branch: _Branch) -> str | None:
    """Why a branch cannot be merged with the widest."""
    if branch.channels != widest.channels:
        return "its number of output channels differs"
    if branch.strides != widest.strides:
        return f"its strides differ: {list(branch.strides)} and {list(widest.strides)}"
    if branch.group % widest.group:
        return f"its groups do not fit: {branch.group} and {widest.group}"
    if not all(set(own) <= set(taps) for own, taps in zip(branch.taps, widest.taps, strict=True)):
        return "its filter window is not inside the other's"
    size = _image(widest.addend)
    same = branch.slack == widest.slack or (size is not None and size == _image(branch.addend))
    return None if same else "its output is not known to have the same size"


def _image(tensor: gs.Tensor) -> list[int] | None:
    """The sizes of the spatial axes if all are known."""
    if tensor.shape is None:
        return None
    sizes = [size for size in tensor.shape[2:] if isinstance(size, int)]
    return sizes if len(sizes) == len(tensor.shape) - 2 else None


def _summed(branches: Sequence[_Branch]) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and bias of the sum, in the type of the first branch's weight; None if a value exceeds
    its range."""
    widest, first = branches[0], branches[0].nodes[0].inputs[1]
    weight, bias = (values.copy() for values in widest.parameters())
    for branch in branches[1:]:
        added, shift = branch.parameters()
        weight[_place(branch, added.shape[1], widest)] += added
        bias += shift
    total, shifted = affine.rounded(first, weight), affine.rounded(first, bias)
    return None if total is None or shifted is None else (total, shifted)


def _place(branch: _Branch, width: int, widest: _Branch) -> tuple[np.ndarray | slice, ...]:
    """The index of a branch's weight [K, width, *kernel] in that of the widest, which has the
    same or larger groups and window."""
    rows = np.arange(branch.channels)[:, None]
    # the first input channel that an output channel reads
    begin = rows // (branch.channels // branch.group) * width
    columns = begin % (width * (branch.group // widest.group)) + np.arange(width)
    return (
        rows,
        columns,
        *(_window(own, taps) for own, taps in zip(branch.taps, widest.taps, strict=True)),
    )


def _window(own: range, taps: range) -> slice:
    """The position of a branch's taps among those of the widest branch."""
    return slice(
        taps.index(own[0]), taps.index(own[-1]) + 1, own.step // taps.step if len(own) > 1 else 1
    )


def _replace(
    graph: gs.Graph, total: _Sum, merged: Sequence[_Branch], weight: np.ndarray, bias: np.ndarray
) -> None:
    """Replace the branches by one Conv; the sum's other addends are added to its result."""
    widest, y = merged[0], total.root.outputs[0]
    rest = [
        tensor for tensor in total.addends if all(tensor is not branch.addend for branch in merged)
    ]
    replaced = [node for branch in merged for node in branch.nodes]
    result = add_variable(graph, f"{widest.addend.name}_merged", widest.addend) if rest else y
    name = f"{replaced[0].inputs[1].name}_merged"
    inputs = [
        widest.x,
        add_constant(graph, name, weight),
        *([add_constant(graph, f"{name}_bias", bias)] if bias.any() else []),
    ]
    insert(
        graph,
        "Conv",
        inputs,
        [result],
        replaced if rest else [*replaced, *total.nodes],
        replaced[0].attrs,
        at=total.root,
    )
    for index, tensor in enumerate(rest):
        added = (
            y
            if index == len(rest) - 1
            else gs.Variable(fresh(graph, f"{y.name}_partial"), dtype=y.dtype)
        )
        insert(graph, "Add", [result, tensor], [added], total.nodes, at=total.root)
        result = added
    remove(graph, [*replaced, *total.nodes])
