"""Chooses the places of QuantizeLinear and DequantizeLinear in a model that is to be quantized, so
that its kernels read and write codes from end to end (docs/quantization.md).

Products are convolutions and matrix products with constant weights. What follows a product within
its epilogue is not stored, and so not rounded. Of images, a tensor that a product, a sum in a
product's epilogue or the gate of squeeze-and-excitation reads is stored as codes alone, which all
others read, too, and so is what a product writes for means alone; tensors that operators only move
share one scale on both sides. Of other tensors, such as those of transformers, products read codes,
and all others values: residuals, normalizations and attention keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.canonicalize.quantized import moves
from onnxbolt.domains import INTERNAL
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.epilogues import EPILOGUES, steps_of
from onnxbolt.families import Stem
from onnxbolt.graph.bodies import bodies_in
from onnxbolt.graph.edit import auto_pad, is_mean, pinned, producer, sole_use
from onnxbolt.graph.order import in_order
from onnxbolt.graph.scopes import nodes_within
from onnxbolt.layout.rules.own import replacing
from onnxbolt.quantize.scales import Left

_LEAST_CHANNELS = 16  # fewer are padded to these, the codes of one access
_LONGEST_SUM = (2**31 - 1) // 128**2  # products of int8 codes that an int32 surely holds
_IMAGE = 4  # dimensions
_PRODUCTS = ("Conv", "MatMul")
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, eq=False)
class Product:
    """A product whose operands become codes."""

    node: gs.Node

    @property
    def x(self) -> gs.Tensor:
        return self.node.inputs[0]

    @property
    def weight(self) -> gs.Constant:
        return self.node.inputs[1]

    @property
    def axis(self) -> int:
        """The axis of the weight's output channels."""
        return 0 if self.node.op == "Conv" else 1


class Placement:
    """The products of `graph` that become products of codes of type `dtype`, but for those that
    `leave` names, and the tensors that are stored as codes."""

    def __init__(self, graph: gs.Graph, dtype: DType, leave: frozenset[str] = frozenset()) -> None:
        self.graph, self.dtype, self._leave = graph, dtype, leave
        self.left: list[Left] = []
        self._order = in_order(graph)
        self._products = self._found()
        self._claimed = dict[gs.Node, gs.Node]()  # sums, by the product whose epilogue has them
        self._inside = set[str]()  # tensors within epilogues
        self._ends = set[str]()  # results of products of codes
        self._wanted = dict[str, bool]()
        # the later of two products takes their sum: the other one's result is there by then
        for node in reversed(self._order):
            if node in self._products:
                self._walk(node)
            elif self._is_stem(node):
                self._walk(node, adds=False)

    @property
    def products(self) -> list[Product]:
        """In the graph's order."""
        return [Product(node) for node in self._order if node in self._products]

    @cached_property
    def groups(self) -> list[list[gs.Tensor]]:
        """The tensors that are stored as codes; those of one group share a scale. In the graph's
        order."""
        groups = dict[str, list[gs.Tensor]]()
        for tensor in self._tensors():
            if not self._is_wanted(tensor) or tensor.name in self._inside:
                continue
            roots = self._roots(tensor)
            met = [groups[root.name] for root in roots if root.name in groups]
            merged = list({t.name: t for group in (*met, roots) for t in group}.values())
            for member in merged:
                groups[member.name] = merged
        unique = {group[0].name: group for group in groups.values()}
        return list(unique.values())

    def readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """The nodes that read the values of the tensor's codes."""
        readers = list(dict.fromkeys(tensor.outputs))
        if _is_image(tensor):
            return readers
        return [node for node in readers if node in self._products and node.inputs[0] is tensor]

    # --- products ---------------------------------------------------------------------------------

    def _found(self) -> dict[gs.Node, None]:
        found = dict[gs.Node, None]()
        for node in self._order:
            self.left += _within(node)
            if node.domain or node.op not in _PRODUCTS:
                continue
            if reason := self._refusal(node):
                self.left.append(Left(node.name, node.op, reason))
            else:
                found[node] = None
        return found

    def _refusal(self, node: gs.Node) -> str:
        """The reason for which a product stays; empty if it becomes one of codes."""
        x, weight = node.inputs[:2]
        if node.name in self._leave:
            return "the search for precisions left it: it gains nothing, or too little"
        if not isinstance(weight, gs.Constant):
            return "both operands are computed at run time"
        if x.dtype != FLOAT or weight.dtype != FLOAT:
            return f"its types are {x.dtype} and {weight.dtype}, and float32 alone is quantized"
        if x.shape is None or isinstance(x, gs.Constant):
            return "its input is constant, or of unknown rank"
        if 0 in weight.shape:
            return "it is empty"
        terms = math.prod(weight.shape) // weight.shape[0 if node.op == "Conv" else -1]
        if self.dtype in INTEGERS and terms > _LONGEST_SUM:
            return f"it adds up {terms:,} products, and int32 surely holds {_LONGEST_SUM:,}"
        return self._of_window(node) if node.op == "Conv" else self._of_matrix(node)

    def _of_matrix(self, node: gs.Node) -> str:
        x, weight = node.inputs[:2]
        if len(weight.shape) != 2 or len(x.shape) < 2:
            return "its weight is no matrix"
        if min(weight.shape) < _LEAST_CHANNELS:
            return f"it has fewer than {_LEAST_CHANNELS} channels"
        return ""

    def _of_window(self, node: gs.Node) -> str:
        x, weight = node.inputs[:2]
        groups = int(node.attrs.get("group", 1))
        if len(weight.shape) != _IMAGE or len(x.shape) != _IMAGE:
            return "it is no convolution of images"
        alone = groups == weight.shape[0] and weight.shape[1] == 1
        by_channel = alone and self.dtype in INTEGERS and families.convolves_by_channel()
        if groups != 1 and not by_channel:
            return "no kernel convolves codes in such groups"
        if groups == 1 and weight.shape[1] < _LEAST_CHANNELS // 2:
            return f"it reads {weight.shape[1]} channels, of which kernels would read 16"
        if auto_pad(node) != "NOTSET":
            return "auto_pad with an unknown input size"
        if len(node.inputs) > 2 and not isinstance(node.inputs[2], gs.Constant):
            return "its bias is computed at run time"
        return ""

    # --- epilogues --------------------------------------------------------------------------------

    def _is_stem(self, node: gs.Node) -> bool:
        """True for a stem convolution of values whose kernel ends with codes."""
        if node.op != "Conv" or node.domain or producer(node.inputs[0]) is not None:
            return False
        weight = node.inputs[1]
        if not isinstance(weight, gs.Constant) or len(weight.shape) != _IMAGE:
            return False
        strides, dilations = (
            tuple(node.attrs.get(name, [1, 1])) for name in ("strides", "dilations")
        )
        k, *filters = map(int, weight.shape)
        groups = int(node.attrs.get("group", 1))
        stem = Stem(DType.F16, (k,), tuple(filters), strides, dilations, groups, ())
        return families.stem_makes_codes(stem, self.dtype)

    def _walk(self, product: gs.Node, adds: bool = True) -> None:
        """Follow the epilogue of a product, which may add tensors, or not."""
        tensor = product.outputs[0]
        while (reader := sole_use(self.graph, tensor)) is not None:
            if not (self._continues(reader, tensor, product) if adds else _is_step(reader)):
                break
            self._inside.add(tensor.name)
            tensor = reader.outputs[0]
        self._ends.add(tensor.name)

    def _continues(self, node: gs.Node, tensor: gs.Tensor, product: gs.Node) -> bool:
        """True if `node` is a step behind `tensor`; a sum is the step of one product alone."""
        if _is_step(node):
            return True
        others = [each for each in node.inputs if each is not tensor]
        if node.op != "Add" or node.domain or len(others) != 1 or not _is_image(tensor):
            return False
        if node in self._claimed or list(others[0].shape or ()) != list(tensor.shape or ()):
            return False
        self._claimed[node] = product
        return True

    # --- codes ------------------------------------------------------------------------------------

    def _tensors(self) -> list[gs.Tensor]:
        read = (t for node in self._order for t in node.inputs if isinstance(t, gs.Variable))
        return list({tensor.name: tensor for tensor in read if tensor.name}.values())

    def _is_wanted(self, tensor: gs.Tensor) -> bool:
        """True if some reader takes codes of the tensor."""
        if tensor.name not in self._wanted:
            self._wanted[tensor.name] = False  # a graph has no cycles; stops nothing else
            self._wanted[tensor.name] = tensor.dtype == FLOAT and any(
                self._takes(node, tensor) for node in tensor.outputs
            )
        return self._wanted[tensor.name]

    def _takes(self, node: gs.Node, tensor: gs.Tensor) -> bool:
        if node in self._products:
            return node.inputs[0] is tensor
        if not _is_image(tensor):
            return False
        if self._is_mover(node):
            return self._moves_codes(node) and any(map(self._is_wanted, node.outputs))
        if is_mean(node):
            return self._averages_codes(node)
        if node in self._claimed:
            return tensor.name not in self._inside
        if not self._computes(node) or not all(map(self._is_written_as_codes, node.inputs)):
            return False
        return self._is_wanted(self._end_of_run(node))

    def _averages_codes(self, mean: gs.Node) -> bool:
        """True if a kernel makes a mean of codes, which a product of codes writes for means alone:
        a mean of many rounds little."""
        op, tensor = replacing(mean), mean.inputs[0]
        if op is None or not families.takes_codes(op.name, self.dtype):
            return False
        alone = all(map(is_mean, tensor.outputs)) and not pinned(self.graph, tensor)
        return alone and self._is_written_as_codes(tensor)

    def _computes(self, node: gs.Node) -> bool:
        """True if kernels between codes may compute the node."""
        return _is_step(node) or (node.op in ("Add", "Mul") and not node.domain)

    def _is_written_as_codes(self, tensor: gs.Tensor) -> bool:
        """True for a constant, and for what only products of codes, and nodes between codes,
        make."""
        if isinstance(tensor, gs.Constant) or not tensor.name:
            return True
        return _is_image(tensor) and all(map(self._is_made_of_codes, self._roots(tensor)))

    def _is_made_of_codes(self, tensor: gs.Tensor) -> bool:
        if tensor.name in self._ends or tensor.name in self._inside:
            return True
        maker = producer(tensor)
        if maker is None or not self._computes(maker):
            return False
        return all(map(self._is_written_as_codes, maker.inputs))

    def _end_of_run(self, node: gs.Node) -> gs.Tensor:
        """The result of a run of elementwise nodes without a product."""
        tensor = node.outputs[0]
        while (reader := sole_use(self.graph, tensor)) is not None and _is_step(reader):
            self._inside.add(tensor.name)
            tensor = reader.outputs[0]
        return tensor

    def _is_mover(self, node: gs.Node | None) -> bool:
        """True if codes take the way of values through the node."""
        if node is None or self.dtype not in INTEGERS or not moves.moves(node):
            return False
        return all(isinstance(t, gs.Variable) and _is_image(t) for t in moves.data(node)) and all(
            _is_image(t) for t in node.outputs
        )

    def _roots(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """The tensors whose values reach `tensor` unchanged, where these are computed."""
        maker = producer(tensor)
        if maker is None or not self._is_mover(maker) or not self._moves_codes(maker):
            return [tensor]
        return [root for moved in moves.data(maker) for root in self._roots(moved)]

    def _moves_codes(self, mover: gs.Node) -> bool:
        """False where less is rounded behind the mover, and nothing in front of it writes codes."""
        if mover.op != "MaxPool" or max(mover.attrs.get("strides", [1])) == 1:
            return True
        return self._is_written_as_codes(mover.inputs[0])


def _within(node: gs.Node) -> Iterator[Left]:
    """The products in the bodies of control flow, which stay."""
    for attribute in bodies_in(node):
        for inner in nodes_within(attribute):
            if inner.op_type in (*_PRODUCTS, "Gemm") and not inner.domain:
                name = inner.name or inner.output[0]
                yield Left(name, inner.op_type, f"it is in a body of {node.op}")


def _is_image(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) == _IMAGE


def _is_step(node: gs.Node) -> bool:
    """True for an activation, or arithmetic with constants, that epilogues have."""
    known = node.op in EPILOGUES if node.domain == INTERNAL else bool(steps_of(node.op))
    variables = [t for t in node.inputs if t.name and not isinstance(t, gs.Constant)]
    return known and len(variables) == 1 and not is_mean(node) and len(node.outputs) == 1
