"""Errors of constants that the original computes and the optimized model stores.

Constant folding and the original's own nodes compute them alike, each with its own roundings.
Behind a difference of nearly equal numbers (LayerNormalization of a constant) these are many units
of small elements, so that they are bounded as those of other nodes are.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from onnxbolt.graph import weights
from onnxbolt.graph.order import protos_in_order
from onnxbolt.verify.bounds import Bounded, is_set
from onnxbolt.verify.limits import Arithmetic
from onnxbolt.verify.models import Models
from onnxbolt.verify.originals import reads_of
from onnxbolt.verify.rules import MOVEMENT, Analysis, Env
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from onnxbolt.verify.standard import Standard


class Folded:
    """The tensors that the original computes from initializers alone. `measured` collects op
    types without a rule, as Analysis does."""

    def __init__(self, models: Models, measured: dict[str, None]) -> None:
        graph = models.original.graph
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._analysis = Analysis(Standard(models.original), {}, measured)
        self._arithmetic = Arithmetic(coarse=models.provider != CPU)

    def error(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """How far two computations of such a tensor may lie apart, as an array of `shape`.

        None where the original does not compute it, or not from initializers alone, or only moves
        values; and where there is no bound.
        """
        if name not in self._makers:
            return None
        nodes = self._behind(name)
        if all(node.op_type in MOVEMENT or node.op_type == "Constant" for node in nodes):
            return None
        reads = {read for node in nodes for read in reads_of(node)} - {
            made for node in nodes for made in node.output
        }
        if not reads <= self._initializers.keys():
            return None
        env: Env = {read: Bounded.of(weights.values(self._initializers[read])) for read in reads}
        try:
            self._analysis.run(protos_in_order(nodes), env, self._arithmetic)
        except RUNTIME_ERRORS:
            return None
        found = env[name]
        return (
            2 * found.absolute(found.arithmetic)
            if is_set(found.arithmetic) and found.value.shape == shape
            else None
        )

    def _behind(self, name: str) -> list[NodeProto]:
        """The nodes that a tensor is computed by."""
        found: dict[tuple[str, ...], NodeProto] = {}  # by the names of a node's outputs
        left = [name]
        while left:
            node = self._makers.get(left.pop())
            if node is not None and tuple(node.output) not in found:
                found[tuple(node.output)] = node
                left += reads_of(node)
        return list(found.values())
