"""Errors that the original makes itself.

The original, too, computes in fp32. Behind a difference of nearly equal numbers its roundings are
many units of a small result. Two differences of that kind do not occur in the optimized model,
whose nodes therefore do not tell their errors: constants that the original computes (say a
LayerNormalization of a constant), and the shift of a BatchNormalization, bias - mean * scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import numpy as np
from onnx import NodeProto

from onnxbolt.graph import weights
from onnxbolt.graph.edit import MOVEMENT
from onnxbolt.graph.order import protos_in_order
from onnxbolt.verify.bounds import Bounded, is_set
from onnxbolt.verify.limits import Arithmetic
from onnxbolt.verify.models import Models
from onnxbolt.verify.originals import reads_of
from onnxbolt.verify.rules import Analysis, Env
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS
from onnxbolt.verify.standard import Standard


class OwnErrors:
    """The original's own errors. `measured` collects op types without a rule, as
    Analysis does."""

    def __init__(self, models: Models, measured: dict[str, None]) -> None:
        graph = models.original.graph
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._equal = self._equal_codes(graph.node)
        self._analysis = Analysis(Standard(models.original), {}, measured)
        self._arithmetic = Arithmetic(coarse=models.provider != CPU)

    def of_constant(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """How far two computations of a tensor that the original computes from initializers alone
        may lie apart, as an array of `shape`.

        None where the original does not compute it, or not from initializers alone, or only moves
        values; and where there is no bound.
        """
        if name not in self._makers:
            return None
        nodes = self._behind(name, frozenset())
        if all(node.op_type in MOVEMENT or node.op_type == "Constant" for node in nodes):
            return None
        found = self._computed(name, nodes, {})
        if found is None or found.value.shape != shape:
            return None
        return 2 * found.absolute(found.arithmetic)

    def between(self, name: str, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """The error that the original makes while it computes tensor `name` from other tensors, as
        an array of `name`'s shape; `values` has what all of them hold.

        It is the distance from the value in float64, which a wrong optimized model cannot hide
        behind, and at most its bound: that alone is known behind operators in fp32.

        None where `name` is not computed from these and initializers alone; and where there is no
        bound.
        """
        known = {other: value for other, value in values.items() if other != name}
        known |= {e: value for other, value in known.items() for e in self._equal.get(other, ())}
        self._analysis.in_fp32 = False
        found = self._computed(name, self._behind(name, known.keys()), known)
        if found is None:
            return None
        bound = found.absolute(found.arithmetic)
        if self._analysis.in_fp32:
            return bound
        with np.errstate(invalid="ignore"):  # infinities
            return np.fmin(bound, np.abs(found.value.astype(np.float64) - values[name]))

    def _equal_codes(self, nodes: Iterable[NodeProto]) -> dict[str, list[str]]:
        """For each result of QuantizeLinear the names of all that are equal, since the numbers and
        the input are: the optimized model has one of them."""
        found: dict[object, list[str]] = {}
        for node in nodes:
            if node.op_type != "QuantizeLinear" or node.domain:
                continue
            numbers = [self._initializers.get(name) for name in node.input[1:]]
            if all(tensor is not None for tensor in numbers):
                contents = tuple(
                    (tensor.data_type, weights.values(tensor).tobytes())
                    for tensor in numbers
                    if tensor is not None
                )
                attributes = tuple(sorted(a.SerializeToString() for a in node.attribute))
                found.setdefault((node.input[0], contents, attributes), []).append(node.output[0])
        return {name: names for names in found.values() if len(names) > 1 for name in names}

    def _computed(
        self, name: str, nodes: list[NodeProto], values: Mapping[str, np.ndarray]
    ) -> Bounded | None:
        """Tensor `name` as `nodes` compute it from `values` and initializers; None where they need
        others, and where there is no bound of its error."""
        reads = {read for node in nodes for read in reads_of(node)} - {
            made for node in nodes for made in node.output
        }
        if not nodes or not reads <= self._initializers.keys() | values.keys():
            return None
        env: Env = {
            read: Bounded.of(
                values[read] if read in values else weights.values(self._initializers[read])
            )
            for read in reads
        }
        try:
            self._analysis.run(protos_in_order(nodes), env, self._arithmetic)
        except RUNTIME_ERRORS:
            return None
        found = env[name]
        return found if is_set(found.arithmetic) else None

    def _behind(self, name: str, known: Set[str]) -> list[NodeProto]:
        """The nodes by which a tensor is computed from `known` ones and initializers."""
        found: dict[tuple[str, ...], NodeProto] = {}  # by the names of a node's outputs
        left = [name]
        while left:
            node = self._makers.get(left.pop())
            if node is not None and tuple(node.output) not in found:
                found[tuple(node.output)] = node
                left += reads_of(node) - known
        return list(found.values())
