"""Replaces candidates by fused nodes that read and write the assigned layouts. No other stage
changes the graph between canonicalization and export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
from onnx import FunctionProto

from onnxbolt.candidates import Candidate
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, only
from onnxbolt.forms import PLAIN, Form, stored_shape, take
from onnxbolt.graph import promises
from onnxbolt.graph.edit import Derived, Node, Weight, held_by, producer, prune
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.graph.windows import Windows
from onnxbolt.layout.assignment import Assignment, last_node
from onnxbolt.layout.carry import Carry, Kernels, Origin, Result, Writer
from onnxbolt.layout.convert import convert
from onnxbolt.layout.elementwise_runs import elementwise_runs
from onnxbolt.layout.fences import fence
from onnxbolt.layout.places import Read, Slice, without_padding
from onnxbolt.layout.slices import Slices, slices
from onnxbolt.names import NODE_FORMAT
from onnxbolt.ops.base import Operation, Signature, Stored
from onnxbolt.ops.functions import DOMAIN, build
from onnxbolt.opspec import OpSpec

_SHARED = 64  # equal constants of at most this many elements are shared
_LEAST_RANK = 3  # tensors with a layout have this rank at least: [N, C, W]


@stage(requires=promises.ORDERED, ensures=promises.KEPT)
def rewrite(
    graph: gs.Graph,
    assignment: Assignment,
    configs: Mapping[gs.Node, Sequence[KernelConfig]],
    archs: Sequence[int],
    sources: Mapping[gs.Node, str] | None = None,
    around: Collection[str] = (),
) -> Rewriter:
    """Replace nodes in place. `configs` has each candidate's configurations by its anchor's node,
    `sources` their origins ("predicted" or "measured"); `around` are the op types of the graphs
    around a body, which it may not have."""
    found = elementwise_runs(graph, assignment)
    concats = slices(graph, assignment, found)
    kernels = {
        node: Kernels(rows, (sources or {}).get(node, "predicted"))
        for node, rows in configs.items()
    }
    ends = {last_node(run): run for run in found}
    inside = {node for run in found for node in run.nodes}
    rewriter = Rewriter(graph, assignment, kernels, archs, concats, inside, around)
    for node in list(graph.nodes):
        candidate = assignment.fused.last.get(node)
        captured = [
            tensor
            for tensor in (candidate.outputs if candidate else node.outputs)
            if tensor.name in graph.captured
        ]
        carry = assignment.carries.get(node)
        concats.finish(node, rewriter)
        if candidate is not None:
            rewriter.fuse(candidate)
        elif node in ends:
            if node.outputs:  # else the node before it does its work
                rewriter.fuse_elementwise(ends[node])
        elif node in inside:
            continue
        elif carry is not None:
            if node.outputs:  # else the node before it does its work
                carry.emit(rewriter, node, carry)
        elif node not in assignment.fused.covered:
            rewriter.keep(node)
        for tensor in captured:
            rewriter.settle(tensor)
    for tensor in graph.outputs:
        rewriter.settle(tensor)
    graph.nodes = rewriter.nodes
    prune(graph)  # nodes that fused nodes read past: Casts, and what moves an op's operands
    fence(graph, rewriter.functions)
    return rewriter


class Rewriter(Writer):
    """The `Writer` of a graph whose layouts are assigned; also gathers the functions and instances
    that its nodes need. `Writer` and `Tensors` say what the methods of theirs do."""

    def __init__(
        self,
        graph: gs.Graph,
        assignment: Assignment,
        kernels: Mapping[gs.Node, Kernels],
        archs: Sequence[int],
        concats: Slices,
        inside: Collection[gs.Node],
        around: Collection[str],
    ) -> None:
        self.graph, self.archs, self._around = graph, archs, around
        self._assignment, self._kernels, self._inside = assignment, kernels, inside
        self.nodes: list[gs.Node] = []
        self.functions: dict[Signature, FunctionProto] = {}
        self.instances: set[Instance] = set()
        self.made: dict[str, str] = {}  # names of candidates' nodes, by their outputs' names
        self._slices, self._excerpts = concats.by_tensor(), concats.excerpts
        self._packed: list[gs.Constant] = []
        self._stored: dict[tuple[str, Form], gs.Tensor] = {}
        self._constants: dict[tuple[object, ...], gs.Constant] = {}

    @property
    def carries(self) -> Mapping[gs.Node, Carry]:
        return self._assignment.carries

    # tensors

    def form(self, tensor: gs.Tensor) -> Form:
        return self._assignment.form(tensor)

    def get(self, tensor: gs.Tensor, form: Form | None) -> gs.Tensor:
        if form is None or not tensor.name:
            return tensor
        if isinstance(tensor, gs.Constant):
            return self._constant_in(tensor, form)
        if (place := self._slices.get(tensor.name)) is not None:
            return place.read()
        if (excerpt := self._excerpts.get(tensor.name)) is not None:
            return excerpt.within(self.get(excerpt.tensor, excerpt.form))
        found = self._stored.get((tensor.name, form))
        if found is None:
            if (native := self.form(tensor)) == form:
                return tensor
            stored = self._stored.get((tensor.name, native), tensor)
            found = convert(self, tensor, stored, native, form, tensor if form == PLAIN else None)
            self._stored[tensor.name, form] = found
        return found

    def _constant_in(self, tensor: gs.Constant, form: Form) -> gs.Tensor:
        """The constant as stored in `form`; vectors and matrices have no layout."""
        if form == PLAIN or len(tensor.shape) < _LEAST_RANK:
            return tensor
        values = (
            tensor.values.transpose(form.order(len(tensor.shape))) if form.last else tensor.values
        )
        stored = take(values, form.channels, -1)
        return self.constant(tensor.name, np.ascontiguousarray(stored))

    def written_last(self, tensor: gs.Tensor) -> gs.Tensor | None:
        form = self.form(tensor)
        return self._stored.get((tensor.name, form)) if form.last and not form.grouped else None

    def is_read_in_place(self, tensor: gs.Tensor) -> bool:
        return tensor.name in self._excerpts

    def is_replaced(self, node: gs.Node) -> bool:
        return node in self._inside

    def produce(self, tensor: gs.Tensor, form: Form) -> gs.Tensor:
        stored = tensor if form == PLAIN else self.variable(tensor, form)
        self._stored[tensor.name, form] = stored
        return stored

    def variable(self, tensor: gs.Tensor, form: Form) -> gs.Variable:
        suffix = "__nhwc" if form.last else "__stored"
        return gs.Variable(
            fresh(self.graph, tensor.name + suffix), tensor.dtype, stored_shape(tensor.shape, form)
        )

    def scratch(self, tensor: gs.Tensor, dtype: np.dtype | type) -> gs.Variable:
        return gs.Variable(
            fresh(self.graph, f"{tensor.name}__{np.dtype(dtype).name}"), np.dtype(dtype)
        )

    def before_cast(self, stored: gs.Tensor) -> gs.Tensor:
        # a pair of Casts to another type and back stays, since ONNX Runtime removes such pairs,
        # with their rounding, in the original as well
        cast = producer(stored)
        if (
            cast is None
            or cast.op != "Cast"
            or cast.domain
            or DType.of(cast.inputs[0].dtype) is None
        ):
            return stored
        before = producer(cast.inputs[0])
        if (
            before is not None
            and before.op == "Cast"
            and before.inputs[0].dtype == cast.outputs[0].dtype
        ):
            return stored
        return cast.inputs[0]

    def constant(self, base: str, values: np.ndarray) -> gs.Constant:
        if values.size > _SHARED:
            return gs.Constant(fresh(self.graph, f"{base}__packed"), values)
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = gs.Constant(fresh(self.graph, f"{base}__packed"), values)
        return self._constants[key]

    # nodes

    def add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        outputs: Sequence[gs.Tensor],
        attributes: dict[str, object],
        about: gs.Tensor,
        source: gs.Node | None = None,
        domain: str = "",
    ) -> gs.Node:
        node = Node(
            op,
            fresh(self.graph, f"{about.name}/{op}"),
            attributes,
            inputs,
            outputs,
            domain,
            getattr(source, "provenance", ()),
        )
        self.nodes.append(node)
        return node

    def keep(self, node: gs.Node) -> None:
        """Keep a node unchanged: it reads and writes its tensors in ONNX's layout. Where an output
        is assigned another form (`Assignment.only`), a conversion follows."""
        for i, tensor in enumerate(node.inputs):
            plain = self.get(tensor, PLAIN)
            if plain is not tensor:
                node.inputs[i] = plain
        self.nodes.append(node)
        for tensor in node.outputs:
            if (form := self.form(tensor)) != PLAIN:
                self._stored[tensor.name, PLAIN] = tensor
                self._stored[tensor.name, form] = convert(self, tensor, tensor, PLAIN, form, None)

    def replace(
        self,
        node: gs.Node,
        inputs: Sequence[gs.Tensor],
        form: Form,
        changes: dict[str, object] | None = None,
    ) -> None:
        outputs = [self.produce(tensor, form) for tensor in node.outputs]
        node.attrs.update(changes or {})
        node.origin = None
        node.outputs.clear()
        node.inputs = list(inputs)
        node.outputs = outputs
        self.nodes.append(node)

    def alias(self, node: gs.Node, stored: gs.Tensor, form: Form) -> None:
        self._stored[node.outputs[0].name, form] = stored
        self.drop(node)

    def drop(self, node: gs.Node) -> None:
        node.inputs.clear()
        node.outputs.clear()

    def own(
        self, operation: Operation, result: Result, origin: Origin, kernels: Kernels
    ) -> gs.Node:
        y, form, covered = result.tensor, result.form, [*origin.covered]
        if isinstance(operation.inputs[0], Read):
            operation = operation.inputs[0].by(operation)
        if (place := result.place or self._slices.get(y.name)) is not None:
            operation = self._placed(operation, place)
            y, form = place.whole.tensor, place.whole.form
            covered += place.whole.completed
        spec = self._used(operation.signature, kernels)
        names = [name for node in covered for name in getattr(node, "provenance", (node.name,))]
        attributes = {
            "format": NODE_FORMAT,
            **operation.attributes,
            "config_source": kernels.source,
            "source_nodes": names,
            "rule": origin.rule,
            "tensor": self._original(y) if place is None or place.whole.completed else "",
            "layout": _layout(y, form),
            "configs": [number for config in kernels.configs for number in config.row()],
            "channel_map": list(form.channels or ()),
            **({} if result.stored is None else self._stored_attributes(result.stored)),
            **self._joined_attributes(y),
            "tensor_windows": _windows_of(y),
        }
        attributes = {name: value for name, value in attributes.items() if value != []}
        for node in covered:
            self.drop(node)
        outputs = [self.produce(y, form)]
        if place is not None:
            place.whole.written += outputs
        if result.stored is not None:
            outputs.append(self.produce(result.stored, self.form(result.stored)))
        return self.add(spec.name, operation.inputs, outputs, attributes, y, origin.source, DOMAIN)

    def _placed(self, operation: Operation, place: Slice) -> Operation:
        """The operation writing to `place`, with attributes that name the source's tensor in these
        channels."""
        placed, name = place.written_by(operation), self._original(place.tensor)
        if not name:
            return placed
        channels = list(place.form.channels or ())
        part = {"part_tensor": name, "part_channel_map": channels}
        return replace(placed, attributes={**placed.attributes, **part})

    def _stored_attributes(self, stored: gs.Tensor) -> dict[str, object]:
        """The attributes that describe a node's second output."""
        form = self.form(stored)
        return {
            "stored_tensor": self._original(stored),
            "stored_layout": _layout(stored, form),
            "stored_channel_map": list(form.channels or ()),
        }

    def _joined_attributes(self, y: gs.Tensor) -> dict[str, object]:
        """The attributes that describe an output that holds several tensors side by side."""
        parts: tuple[gs.Tensor, ...] = getattr(y, "joined", ()) if held_by(y) else ()
        return {
            "joined_tensors": list(held_by(y)) if parts else [],
            "joined_widths": [int(part.shape[-1]) for part in parts],
        }

    def _used(self, signature: Signature, kernels: Kernels) -> OpSpec:
        """The op type of a node with these kernels, which the library then needs."""
        if signature not in self.functions:
            self.functions[signature] = build(signature, self.graph.opset, self._around)
        spec = self._spec(signature)
        self.instances.update(spec.instance(config) for config in kernels.configs)
        return spec

    def _original(self, tensor: gs.Tensor) -> str:
        """The name of the source's tensor that `tensor` stands for; "" if there is none, or if
        there are several."""
        held = held_by(tensor)
        return held[0] if len(held) == 1 and held[0] in self.graph.source_tensors else ""

    @property
    def ops(self) -> list[OpSpec]:
        """The op types that the library needs."""
        return sorted(
            (self._spec(signature) for signature in self.functions), key=lambda op: op.name
        )

    @property
    def shared_weights(self) -> list[str]:
        """Weights that are stored twice: packed, and unchanged for nodes that stay."""
        return sorted(
            {
                weight.name
                for weight in self._packed
                if any(node in self.nodes for node in weight.outputs)
            }
        )

    def _spec(self, signature: Signature) -> OpSpec:
        return OpSpec.of(signature, self.functions[signature].name)

    def fuse(self, candidate: Candidate) -> None:
        """Replace a candidate's nodes by one fused node."""
        anchor, stored = candidate.anchor, self._assignment.stored(candidate)
        output = candidate.output.name
        operation = anchor.op.operation(candidate, stored, self)
        result = Result(candidate.output, stored.writes, candidate.stored)
        if (plain := stored.both) is not None:
            result = Result(plain, PLAIN, candidate.output)
        origin = Origin(candidate.rule, anchor.node, candidate.nodes)
        node = self.own(operation, result, origin, self._kernels.get(anchor.node, Kernels()))
        self.made[output] = node.name

    def fuse_elementwise(self, chain: Candidate) -> None:
        """Replace consecutive elementwise nodes by one node."""
        op, form = chain.anchor.op, self.form(chain.output)
        reads = self.carries[chain.anchor.node].reads[0] or form
        operation = op.operation(chain, Stored(reads, form), self)
        self.own(
            without_padding(operation, reads),
            Result(chain.output, form),
            Origin(chain.rule, chain.anchor.node, chain.nodes),
            Kernels([only(op.name, arch) for arch in self.archs]),
        )

    def settle(self, tensor: gs.Tensor) -> None:
        """Make a graph output, or a tensor that a subgraph reads, exist under its name in ONNX's
        layout."""
        plain = self.get(tensor, PLAIN)
        if plain is not tensor:
            self.add("Identity", [plain], [tensor], {}, tensor)
            self._stored[tensor.name, PLAIN] = tensor

    def packed(
        self, weight: gs.Constant, key: Hashable, arrange: Callable[[], np.ndarray | Derived]
    ) -> gs.Constant:
        place = (weight.name, key)
        if place not in self._constants:
            self._constants[place] = Weight(fresh(self.graph, f"{weight.name}__packed"), arrange())
            self._packed.append(weight)
        return self._constants[place]


def _layout(tensor: gs.Tensor, form: Form) -> str:
    """The layout in which the source's tensor that `tensor` stands for is stored."""
    return "NHWC" if form.last or getattr(tensor, "channels_last", False) else ""


def _windows_of(tensor: gs.Tensor) -> list[int]:
    """The numbers of the windows in whose order the source has the rows of `tensor`, which are an
    image's, and the number of the image's axes; empty if the order is the same."""
    windows: Windows | None = getattr(tensor, "windows", None)
    return [*windows.numbers, len(tensor.shape) - 2] if windows is not None else []
