"""Nodes and constants of a graph, and the functions with which stages change it.

Graphsurgeon compares nodes by value, which is slow and confuses unnamed twins; nodes made here are
compared by identity.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from onnxbolt.graph import weights
from onnxbolt.graph.element_types import numpy_dtype
from onnxbolt.graph.names import fresh


class Node(gs.Node):  # type: ignore[misc]
    """A node and where it came from; see docs/architecture.md, "The graph in memory"."""

    origin: onnx.NodeProto | None
    position: int | None  # index in the source graph, None for a new node
    provenance: tuple[str, ...]
    expansion: tuple[onnx.NodeProto, ...]  # the nodes that a recognized one stands for

    def __init__(
        self,
        op: str,
        name: str = "",
        attrs: Mapping[str, Any] | None = None,
        inputs: Sequence[gs.Tensor] = (),
        outputs: Sequence[gs.Tensor] = (),
        domain: str = "",
        provenance: tuple[str, ...] = (),
    ) -> None:
        super().__init__(op, name, dict(attrs or {}), list(inputs), list(outputs), domain)
        self.origin, self.position, self.provenance, self.expansion = None, None, provenance, ()

    __eq__ = object.__eq__  # without a call of Python for each node of a list that is searched
    __hash__ = object.__hash__


class ProtoValues(LazyValues):  # type: ignore[misc]
    """Values of a TensorProto, decoded on first use; `dtype` is the ONNX number where numpy has
    no such type."""

    def __init__(self, tensor: onnx.TensorProto) -> None:
        self.tensor = tensor
        self.shape, self.dtype = tuple(tensor.dims), numpy_dtype(tensor.data_type)
        self.nbytes = weights.stored_bytes(tensor)
        self.array: np.ndarray | None = None

    def load(self) -> np.ndarray:
        """The values as a read-only array. A stage that changes values makes a new array, by which
        the exporter tells that they changed.

        Those that lie apart are mapped anew each time, so that their memory is free again when
        nobody holds them.
        """
        if self.array is not None:
            return self.array
        array = weights.values(self.tensor)
        array.flags.writeable = False
        if not weights.is_apart(self.tensor):
            self.array = array
        return array


class Derived(LazyValues):  # type: ignore[misc]
    """Large values that are computed from others each time they are asked for, so that the weights
    of a model are never all in memory at once."""

    def __init__(
        self, compute: Callable[[], np.ndarray], dtype: np.dtype, shape: Sequence[int]
    ) -> None:
        self.compute, self.dtype, self.shape = compute, dtype, tuple(shape)
        self.nbytes = math.prod(self.shape) * dtype.itemsize

    def load(self) -> np.ndarray:
        return self.compute()


class Weight(gs.Constant):  # type: ignore[misc]
    """A constant that loads lazy values each time they are asked for; graphsurgeon's own class
    would keep them in memory."""

    @property
    def values(self) -> np.ndarray:
        return self._values.load() if isinstance(self._values, LazyValues) else self._values

    @values.setter
    def values(self, values: np.ndarray | LazyValues) -> None:
        self._values = values

    @property
    def is_large(self) -> bool:
        """True if the values take much memory when they are loaded, and are not in memory now."""
        apart = not isinstance(self._values, ProtoValues) or weights.is_apart(self._values.tensor)
        return (
            isinstance(self._values, LazyValues) and apart and self._values.nbytes >= weights.LARGE
        )


class Constant(Weight):
    """A constant of the source model: an initializer, or the value of a Constant node
    (`origin`)."""

    proto: onnx.TensorProto
    origin: onnx.NodeProto | None
    position: int | None

    def __init__(
        self,
        name: str,
        proto: onnx.TensorProto,
        origin: onnx.NodeProto | None = None,
        position: int | None = None,
    ) -> None:
        self.source_values = ProtoValues(proto)
        super().__init__(name, self.source_values)
        self.proto, self.origin, self.position = proto, origin, position

    @property
    def untouched(self) -> bool:
        """True if the values are still those of `proto`."""
        return self._values is self.source_values or (
            self._values is self.source_values.array and self._values is not None
        )


def derived(
    constant: gs.Constant,
    function: Callable[[np.ndarray], np.ndarray],
    dtype: np.dtype,
    shape: Sequence[int],
) -> np.ndarray | Derived:
    """`function` of a constant's values, an array of `dtype` and `shape`: computed now if it is
    small, else each time it is asked for."""
    values = constant._values
    if math.prod(shape) * dtype.itemsize < weights.LARGE or not isinstance(constant, Weight):
        return function(constant.values)
    return Derived(
        lambda: function(values.load() if isinstance(values, LazyValues) else values), dtype, shape
    )


def held_by(tensor: gs.Tensor) -> tuple[str, ...]:
    """The names of the tensors of the source model that `tensor` may hold: its own, that of the
    tensor whose value it has in another type or layout, or those that lie side by side in its
    rows; none after `stand_alone`, or if that holds for one of several."""
    parts: tuple[gs.Tensor, ...] | None = getattr(tensor, "joined", None)
    if parts is None:
        return (getattr(tensor, "original", tensor.name),)
    held = [held_by(part) for part in parts]
    return tuple(name for names in held for name in names) if all(held) else ()


def stand_in(variable: gs.Variable, tensor: gs.Tensor, channels_last: bool = False) -> None:
    """Record that `variable` has the value of `tensor` in another type, or, `channels_last`, of an
    image tensor as NHWC."""
    if held_by(tensor):
        variable.original = getattr(tensor, "original", tensor.name)
    else:
        stand_alone(variable)
    variable.channels_last = channels_last or getattr(tensor, "channels_last", False)


def stand_alone(variable: gs.Variable) -> None:
    """Record that `variable` holds no tensor of the source, and that a kernel may compute it
    nevertheless: verification compares the tensors that follow from it."""
    variable.joined = ()


def pinned(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """True if the tensor must keep its name: it is a graph output, or a subgraph reads it."""
    return tensor.name in graph.captured or any(tensor is output for output in graph.outputs)


def sole_use(graph: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """The node that reads `tensor` if that is its only use, else None. A graph output, a tensor
    that a subgraph reads and a node that reads it twice count as further uses."""
    if len(tensor.outputs) != 1 or pinned(graph, tensor):
        return None
    return tensor.outputs[0]


def producer(tensor: gs.Tensor) -> gs.Node | None:
    """The node that computes `tensor`; None for constants and graph inputs."""
    return tensor.inputs[0] if tensor.inputs else None


def only_reader(tensor: gs.Tensor, op: str = "") -> gs.Node | None:
    """The one node that reads `tensor`; where `op` names an operator of ONNX's, if it is that."""
    node = tensor.outputs[0] if len(tensor.outputs) == 1 else None
    if node is None or (op and (node.op != op or node.domain)):
        return None
    return node


def other_input(node: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
    """The operand beside `tensor`, of a node with two."""
    return node.inputs[1 if node.inputs[0] is tensor else 0]


def constant_values(tensor: gs.Tensor) -> np.ndarray | None:
    """The values of a constant that numpy can represent, else None."""
    if not isinstance(tensor, gs.Constant) or not isinstance(tensor.dtype, np.dtype):
        return None
    values: np.ndarray = tensor.values
    return values


def constant_integers(node: gs.Node, index: int) -> list[int] | None:
    """Input `index` of a node as a list of numbers if it is a constant, else None."""
    if index >= len(node.inputs) or not isinstance(node.inputs[index], gs.Constant):
        return None
    values: list[int] = node.inputs[index].values.reshape(-1).tolist()
    return values


def unrounded_values(tensor: gs.Tensor) -> np.ndarray | None:
    """As `constant_values`, but the values from before the precision stage rounded them."""
    values: np.ndarray | LazyValues | None = getattr(tensor, "unrounded", None)
    if isinstance(values, LazyValues):
        loaded: np.ndarray = values.load()
        return loaded
    return constant_values(tensor) if values is None else values


def scalar(tensor: gs.Tensor) -> float | None:
    """The value of a constant with one element, else None."""
    if not isinstance(tensor, gs.Constant) or int(np.prod(tensor.shape)) != 1:
        return None
    values = constant_values(tensor)
    return None if values is None or values.dtype.kind in "OSU" else float(values.reshape(())[()])


def optional(tensors: Sequence[gs.Tensor], index: int) -> gs.Tensor | None:
    """An input or output that a node may lack."""
    found = tensors[index] if index < len(tensors) else None
    return found if found is not None and found.name else None


def add_constant(graph: gs.Graph, base: str, values: np.ndarray | Derived) -> gs.Constant:
    """A new constant named `base`, or a name derived from it if that is taken."""
    if isinstance(values, Derived):
        return Weight(fresh(graph, base), values)
    return gs.Constant(fresh(graph, base), np.ascontiguousarray(values).reshape(values.shape))


def add_variable(graph: gs.Graph, base: str, like: gs.Tensor) -> gs.Variable:
    """A new tensor with the type and shape of `like`, named `base`, or a name derived from it if
    that is taken."""
    return gs.Variable(fresh(graph, base), dtype=like.dtype, shape=like.shape)


def insert(
    graph: gs.Graph,
    op: str,
    inputs: Sequence[gs.Tensor],
    outputs: Sequence[gs.Tensor],
    sources: Iterable[gs.Node],
    attrs: Mapping[str, Any] | None = None,
    domain: str = "",
    at: gs.Node | None = None,
) -> Node:
    """Add a node that stands for `sources`, placed before `at` (else last), so that the nodes keep
    the source model's order."""
    sources = list(sources)
    provenance = tuple(
        dict.fromkeys(name for node in sources for name in getattr(node, "provenance", ()))
    )
    base = sources[0].name if sources and sources[0].name else outputs[0].name
    node = Node(op, fresh(graph, f"{base}/{op}"), attrs, inputs, outputs, domain, provenance)
    changes = _changes(graph)
    if changes is not None:
        changes.before[at].append(node)
        return node
    index = next((i for i, other in enumerate(graph.nodes) if other is at), len(graph.nodes))
    graph.nodes.insert(index, node)
    return node


def rearranged(
    graph: gs.Graph,
    op: str,
    inputs: Sequence[gs.Tensor],
    about: gs.Tensor,
    shape: Sequence[Any],
    at: gs.Node,
    **attrs: Any,
) -> gs.Variable:
    """The result of a new node before `at`, of the type of `about` and named after it, which holds
    values in another order than the source's tensors."""
    result = gs.Variable(fresh(graph, f"{about.name}/{op}"), about.dtype, list(shape))
    stand_alone(result)
    insert(graph, op, inputs, [result], [at], attrs, at=at)
    return result


def replace_uses(old: gs.Tensor, new: gs.Tensor) -> None:
    """Let every node that reads `old` read `new`."""
    for node in dict.fromkeys(old.outputs):
        for index, tensor in enumerate(node.inputs):
            if tensor is old:
                node.inputs[index] = new


def disconnect(node: gs.Node) -> None:
    """Let a node read and write nothing. A pass over many nodes disconnects each, and removes all
    at its end: each `remove` reads the whole list of nodes."""
    node.inputs.clear()
    node.outputs.clear()


@dataclass(frozen=True)
class _Changes:
    """Nodes to insert, by the node that they stand before (None: behind all), and to remove."""

    before: defaultdict[gs.Node | None, list[gs.Node]]
    removed: set[gs.Node]

    def applied(self, nodes: Iterable[gs.Node]) -> list[gs.Node]:
        """The nodes with these changes; others may be inserted before one that was inserted."""
        result = list[gs.Node]()
        left = [*reversed([*nodes, *self.before.pop(None, ())])]
        while left:
            node = left.pop()
            if node in self.before:
                left += [node, *reversed(self.before.pop(node))]
            elif node not in self.removed:
                result.append(node)
        return result


def _changes(graph: gs.Graph) -> _Changes | None:
    """The changes that are not made yet. Graphsurgeon takes unknown attributes of a graph for
    functions, and logs an error."""
    return vars(graph).get("changes")


@contextmanager
def together(graph: gs.Graph) -> Iterator[None]:
    """Within it `insert` and `remove` leave the list of nodes as it was, and all their changes are
    made at its end. Each of them reads the whole list otherwise, which is quadratic for a pass that
    rewrites every node."""
    graph.changes = changes = _Changes(defaultdict(list), set())
    try:
        yield
    finally:
        graph.changes = None
        graph.nodes = changes.applied(graph.nodes)


def remove(graph: gs.Graph, nodes: Iterable[gs.Node]) -> None:
    """Take nodes out of the graph and disconnect them."""
    doomed = dict.fromkeys(nodes)
    for node in doomed:
        disconnect(node)
    changes = _changes(graph)
    if changes is not None:
        changes.removed.update(doomed)
    elif doomed:
        graph.nodes = [node for node in graph.nodes if node not in doomed]


def prune(graph: gs.Graph) -> int:
    """Remove nodes whose outputs nothing reads; returns how many were removed."""
    count, pending = 0, list(graph.nodes)
    while pending:
        dead = dict.fromkeys(
            node
            for node in pending
            if not any(t.outputs or pinned(graph, t) for t in node.outputs if t.name)
        )
        feeders = dict.fromkeys(
            p
            for node in dead
            for t in node.inputs
            if (p := producer(t)) is not None and p not in dead
        )
        remove(graph, dead)
        count += len(dead)
        pending = list(feeders) if dead else []
    return count


def is_float(tensor: gs.Tensor) -> bool:
    """True if the tensor has a floating-point type whose values float64 can represent."""
    return isinstance(tensor.dtype, np.dtype) and tensor.dtype in _FLOATS


_FLOATS = (
    np.dtype(np.float16),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(np.float32),
    np.dtype(np.float64),
)


def auto_pad(node: gs.Node) -> str:
    """The padding mode of a convolution or pooling; an empty string means NOTSET, as in ONNX
    Runtime."""
    return node.attrs.get("auto_pad") or "NOTSET"


def conv_attributes(node: gs.Node) -> dict[str, object]:
    """Explicit Conv attributes with ONNX's defaults filled in."""
    spatial = len(node.inputs[1].shape) - 2
    return {
        "strides": list(node.attrs.get("strides", [1] * spatial)),
        "pads": list(node.attrs.get("pads", [0] * 2 * spatial)),
        "dilations": list(node.attrs.get("dilations", [1] * spatial)),
        "group": int(node.attrs.get("group", 1)),
    }


# operators whose result has no other values than their first input
SELECTING = frozenset(
    {
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
# operators that move values of any type and compute nothing; some of their inputs say where to
MOVEMENT = SELECTING | {
    "Compress",
    "Concat",
    "DepthToSpace",
    "Gather",
    "GatherElements",
    "GatherND",
    "Pad",
    "ReverseSequence",
    "SpaceToDepth",
    "Split",
    "Trilu",
    "Where",
}

MEANS = ("GlobalAveragePool", "ReduceMean")  # operators that may average images


def is_mean(node: gs.Node) -> bool:
    """True if the node is the mean over all spatial axes of [N, C, L], [N, C, H, W] or
    [N, C, D, H, W] that keeps these as 1."""
    if node.domain or node.op not in MEANS:
        return False
    if node.op == "GlobalAveragePool":
        return True
    axes, shape = reduced_axes(node), node.inputs[0].shape
    rank = len(shape) if shape is not None else 4
    return (
        bool(axes)
        and rank in (3, 4, 5)
        and sorted(axis % rank for axis in axes or ()) == list(range(2, rank))
        and bool(node.attrs.get("keepdims", 1))
    )


def reduced_axes(node: gs.Node) -> list[int] | None:
    """The constant axes of a reduction, which are an attribute or an input, as they are written;
    None if they are left out or computed."""
    if (axes := node.attrs.get("axes")) is not None:
        return [int(axis) for axis in axes]
    return constant_integers(node, 1)
