"""The graph's nodes and constants, and the few moves that every stage makes on them.

Graphsurgeon compares nodes by value, which is slow and confuses unnamed twins; nodes made here are compared by identity.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from onnxbolt.graph.names import fresh


class Node(gs.Node):  # type: ignore[misc]
    """A node and where it came from; see docs/architecture.md, "The graph in memory"."""

    origin: onnx.NodeProto | None
    position: int | None  # index in the source graph, None for a new node
    provenance: tuple[str, ...]
    expansion: tuple[onnx.NodeProto, ...]  # the nodes that a recognized activation stands for

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

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class ProtoValues(LazyValues):  # type: ignore[misc]
    """Values of a TensorProto, decoded on first use; `dtype` is the ONNX number where numpy has no such type."""

    def __init__(self, tensor: onnx.TensorProto, base_dir: str = "") -> None:
        self.tensor, self.base_dir = tensor, base_dir
        self.shape, self.dtype = tuple(tensor.dims), numpy_dtype(tensor.data_type)
        self.nbytes = int(np.prod(self.shape)) * getattr(self.dtype, "itemsize", 1)
        self.array: np.ndarray | None = None

    def load(self) -> np.ndarray:
        """The values as a read-only array: a change must be a new array, which the exporter can tell from this one."""
        if self.array is None:
            tensor = self.tensor
            if onnx.external_data_helper.uses_external_data(tensor):  # loading writes into the proto that it is given
                tensor = onnx.TensorProto()
                tensor.CopyFrom(self.tensor)
            self.array = onnx.numpy_helper.to_array(tensor, self.base_dir)
            self.array.flags.writeable = False
        return self.array


class Constant(gs.Constant):  # type: ignore[misc]
    """A constant of the source model: an initializer, or the value of a Constant node (`origin`)."""

    proto: onnx.TensorProto
    origin: onnx.NodeProto | None
    position: int | None

    def __init__(self, name: str, proto: onnx.TensorProto, base_dir: str = "", origin: onnx.NodeProto | None = None,
                 position: int | None = None) -> None:
        self.source_values = ProtoValues(proto, base_dir)
        super().__init__(name, self.source_values)
        self.proto, self.origin, self.position = proto, origin, position

    @property
    def untouched(self) -> bool:
        """Whether the values are still those of `proto`."""
        return self._values is self.source_values or (self._values is self.source_values.array and self._values is not None)


def numpy_dtype(onnx_type: int) -> np.dtype | int | None:
    """The numpy type (ml_dtypes for bfloat16 and below) of a TensorProto.DataType; the number itself where there is none."""
    if onnx_type == onnx.TensorProto.UNDEFINED:
        return None
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx_type))
    except KeyError:
        return onnx_type


def onnx_dtype(dtype: Any) -> int:
    """The inverse of `numpy_dtype`; raises ValueError for a type that ONNX lacks."""
    if isinstance(dtype, int):
        return dtype
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def pinned(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """Whether the tensor must be produced under its name: a graph output, or read by a subgraph."""
    return tensor.name in graph.captured or any(tensor is output for output in graph.outputs)


def sole_use(graph: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """The one node that reads `tensor`, once, where nothing else needs it; else None."""
    if len(tensor.outputs) != 1 or pinned(graph, tensor):
        return None
    return tensor.outputs[0]


def producer(tensor: gs.Tensor) -> gs.Node | None:
    """The node that computes `tensor`; None for constants and graph inputs."""
    return tensor.inputs[0] if tensor.inputs else None


def constant_values(tensor: gs.Tensor) -> np.ndarray | None:
    """The values of a constant that numpy can represent, else None."""
    if not isinstance(tensor, gs.Constant) or not isinstance(tensor.dtype, np.dtype):
        return None
    values: np.ndarray = tensor.values
    return values


def scalar(tensor: gs.Tensor) -> float | None:
    """The value of a constant of one element, else None."""
    if not isinstance(tensor, gs.Constant) or int(np.prod(tensor.shape)) != 1:
        return None
    values = constant_values(tensor)
    return None if values is None or values.dtype.kind in "OSU" else float(values.reshape(())[()])


def add_constant(graph: gs.Graph, base: str, values: np.ndarray) -> gs.Constant:
    """A new constant named `base`, or like it."""
    return gs.Constant(fresh(graph, base), np.ascontiguousarray(values).reshape(values.shape))


def add_variable(graph: gs.Graph, base: str, like: gs.Tensor) -> gs.Variable:
    """A new tensor named `base`, or like it, of the type and shape of `like`."""
    return gs.Variable(fresh(graph, base), dtype=like.dtype, shape=like.shape)


def insert(graph: gs.Graph, op: str, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor], sources: Iterable[gs.Node],
           attrs: Mapping[str, Any] | None = None, domain: str = "", at: gs.Node | None = None) -> Node:
    """Add a node standing for `sources`, placed before `at` (else last) so that the source's order is kept."""
    sources = list(sources)
    provenance = tuple(dict.fromkeys(name for node in sources for name in getattr(node, "provenance", ())))
    base = sources[0].name if sources and sources[0].name else outputs[0].name
    node = Node(op, fresh(graph, f"{base}/{op}"), attrs, inputs, outputs, domain, provenance)
    index = next((i for i, other in enumerate(graph.nodes) if other is at), len(graph.nodes))
    graph.nodes.insert(index, node)
    return node


def replace_uses(old: gs.Tensor, new: gs.Tensor) -> None:
    """Let every node that reads `old` read `new`."""
    for node in {id(node): node for node in old.outputs}.values():
        for index, tensor in enumerate(node.inputs):
            if tensor is old:
                node.inputs[index] = new


def remove(graph: gs.Graph, nodes: Iterable[gs.Node]) -> None:
    """Take nodes out of the graph and disconnect them."""
    doomed = {id(node): node for node in nodes}
    for node in doomed.values():
        node.inputs.clear()
        node.outputs.clear()
    graph.nodes = [node for node in graph.nodes if id(node) not in doomed]


def prune(graph: gs.Graph) -> int:
    """Remove nodes whose outputs nobody reads any more; returns how many."""
    count, pending = 0, list(graph.nodes)
    while pending:
        dead = {id(node): node for node in pending if not any(t.outputs or pinned(graph, t) for t in node.outputs if t.name)}
        feeders = {id(p): p for node in dead.values() for t in node.inputs if (p := producer(t)) is not None and id(p) not in dead}
        remove(graph, dead.values())
        count += len(dead)
        pending = list(feeders.values()) if dead else []
    return count


def is_float(tensor: gs.Tensor) -> bool:
    """Whether the tensor holds floating-point numbers that arithmetic in float64 can stand for."""
    return isinstance(tensor.dtype, np.dtype) and tensor.dtype in _FLOATS


_FLOATS = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float64))


def auto_pad(node: gs.Node) -> str:
    """Of a convolution or pooling; an empty string is no mode, as in ONNX Runtime."""
    return node.attrs.get("auto_pad") or "NOTSET"


def conv_attributes(node: gs.Node) -> dict[str, object]:
    """Explicit Conv attributes with ONNX's defaults filled in."""
    spatial = len(node.inputs[1].shape) - 2
    return {
        "strides": list(node.attrs.get("strides", [1] * spatial)), "pads": list(node.attrs.get("pads", [0] * 2 * spatial)),
        "dilations": list(node.attrs.get("dilations", [1] * spatial)), "group": int(node.attrs.get("group", 1)),
    }
