"""The original's tensors, computed piece by piece, so that few of them are in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from onnxbolt.graph.order import protos_in_order
from onnxbolt.graph.scopes import outer_reads, subgraphs
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.session import Runner

_AT_A_TIME = 8  # tensors that a piece returns
# operators whose output may be no tensor, so that it cannot be passed from one session to another
_NO_TENSORS = {
    "If",
    "Loop",
    "Optional",
    "OptionalGetElement",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
    "ZipMap",
}


class Originals:
    """Tensors of the original model. Each can be taken as often as `uses` says; then its memory is
    freed."""

    def __init__(self, runner: Runner, feeds: Feeds, uses: Mapping[str, int]) -> None:
        self._runner, self._uses = runner, Counter(uses)
        wide = {
            value.name
            for value in runner.skeleton.graph.input
            if value.type.tensor_type.elem_type == TensorProto.FLOAT
        }
        # if it was widened
        self._values = {
            name: a.astype(np.float32, copy=False) if name in wide else a
            for name, a in feeds.items()
        }
        self._pieces = list(_pieces(protos_in_order(runner.skeleton.graph.node), set(uses)))
        self._readers = Counter(name for piece in self._pieces for name in _read(piece))
        self._next = 0

    def take(self, name: str) -> np.ndarray:
        """One use of a tensor. Raises one of RUNTIME_ERRORS if the model does not run on the
        inputs."""
        value = self.see(name)
        self._uses[name] -= 1
        self._drop([name])
        return value

    def see(self, name: str) -> np.ndarray:
        """A tensor, as `take` returns it, without using it up."""
        while name not in self._values:
            self._advance()
        return self._values[name]

    def _advance(self) -> None:
        piece = self._pieces[self._next]
        self._next += 1
        reads = _read(piece)
        self._readers.subtract(reads)
        wanted = [
            name for name in _outputs(piece) if self._uses[name] > 0 or self._readers[name] > 0
        ]
        self._values.update(
            self._runner.part(
                piece, {name: self._values[name] for name in reads if name in self._values}, wanted
            )
        )
        self._drop(reads)

    def _drop(self, names: Sequence[str] | set[str]) -> None:
        for name in names:
            if self._uses[name] <= 0 and self._readers[name] <= 0:
                self._values.pop(name, None)


def makes_tensors(node: NodeProto) -> bool:
    """True if all outputs of a node are certainly tensors."""
    return node.op_type not in _NO_TENSORS


def reads_of(node: NodeProto) -> set[str]:
    """Names that a node and its subgraphs read."""
    inner = {
        name
        for attribute in node.attribute
        for graph in subgraphs(attribute)
        for name in outer_reads(graph)
    }
    return {name for name in node.input if name} | inner


def _pieces(nodes: Sequence[NodeProto], wanted: set[str]) -> Iterator[list[NodeProto]]:
    """The nodes in order, cut into pieces that compute enough each and pass only tensors on.

    Each piece has the Constants that it reads: as inputs they would tell onnx's inference less, or
    something wrong (a scalar's Unsqueeze by axes that are unknown becomes an empty size).
    """
    constants = {node.output[0]: node for node in nodes if node.op_type == "Constant"}

    def complete(piece: list[NodeProto]) -> list[NodeProto]:
        return [*(constants[name] for name in sorted(_read(piece) & constants.keys())), *piece]

    last = {name: i for i, node in enumerate(nodes) for name in reads_of(node)}
    piece: list[NodeProto] = []
    open_until, found = -1, 0
    for i, node in enumerate(nodes):
        piece.append(node)
        found += sum(name in wanted for name in node.output)
        if not makes_tensors(node):
            open_until = max(open_until, *(last.get(name, -1) for name in node.output))
        if found >= _AT_A_TIME and i >= open_until:
            yield complete(piece)
            piece, found = [], 0
    if piece:
        yield complete(piece)


def _outputs(piece: Sequence[NodeProto]) -> list[str]:
    return [name for node in piece for name in node.output if name]


def _read(piece: Sequence[NodeProto]) -> set[str]:
    """The tensors that a piece reads and does not compute."""
    return {name for node in piece for name in reads_of(node)} - set(_outputs(piece))
