"""The inputs of segments: the original's tensors in the form in which the optimized model stores
them.

Padded channels have no original. They get the optimized model's own values: mostly an activation of
zero, which the next layer's zero weights remove. So a bias in the padding and a weight that reads
it are found together, in the segment that has both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto

from onnxbolt.verify.bounds import is_float
from onnxbolt.verify.limits import LARGEST
from onnxbolt.verify.originals import Originals, reads_of
from onnxbolt.verify.segments import Plan, Segment
from onnxbolt.verify.session import Runner
from onnxbolt.verify.stored import Known

Arrays = dict[str, np.ndarray]


class Operands:
    """Gives each segment its inputs, in the order of the plan."""

    def __init__(self, candidate: Runner, originals: Originals, found: Plan) -> None:
        self._candidate, self._originals, self._types = candidate, originals, found.types
        # the segments that have not run yet, by the stored tensors that they write
        self._makers = {
            tensor.stored: segment for segment in found.segments for tensor in segment.writes
        }
        self._readers = Counter(
            tensor.stored for segment in found.segments for tensor in segment.reads.values()
        )
        # types of stored tensors that earlier segments computed
        self._seen: dict[str, np.dtype] = {}
        self._padding: Arrays = {}  # padding of stored tensors that later segments read

    def of(self, segment: Segment, originals: Mapping[str, np.ndarray]) -> Arrays:
        """The inputs of a segment by the names under which it reads them; `originals` has the
        original's tensors.

        Raises one of RUNTIME_ERRORS where the model does not compute the padding.
        """
        try:
            return {name: self._stored(tensor, originals) for name, tensor in segment.reads.items()}
        finally:
            for tensor in segment.writes:
                self._makers.pop(tensor.stored, None)

    def computed(self, segment: Segment, got: Arrays) -> None:
        """Keep the results of a segment for the segments that read them."""
        self._readers.subtract(tensor.stored for tensor in segment.reads.values())
        for tensor in segment.reads.values():
            if self._readers[tensor.stored] <= 0:
                self._padding.pop(tensor.stored, None)
        for tensor in segment.writes:
            values = got[tensor.stored]
            self._seen[tensor.stored] = values.dtype
            if self._readers[tensor.stored] > 0 and tensor.padding:
                self._padding[tensor.stored] = _taken(values, tensor.padding)

    def _stored(self, tensor: Known, originals: Mapping[str, np.ndarray]) -> np.ndarray:
        """The original's values with the optimized model's padding; channels that no node has
        written yet are zero."""
        kind, original = self._types.get(tensor.stored), originals[tensor.own.name].dtype
        dtype = (
            onnx.helper.tensor_dtype_to_np_dtype(kind)
            if kind
            else self._seen.get(tensor.stored, original)
        )
        pieces = [
            (piece, as_type(piece.stored(originals[piece.name]), dtype)) for piece in tensor.pieces
        ]
        piece, whole = pieces[0]
        if len(pieces) > 1 or not piece.whole:
            whole = np.zeros(
                (*whole.shape[:-1], piece.begin + whole.shape[-1] - (piece.end or 0)), dtype
            )
            for piece, values in pieces:
                whole[..., piece.begin : piece.end] = values
        if tensor.padding:
            whole[..., tensor.padding] = self._padding_of(tensor, originals)
        return whole

    def _padding_of(self, tensor: Known, originals: Mapping[str, np.ndarray]) -> np.ndarray:
        """The padding that the optimized model computes; if segments read each other's results,
        from the nodes of a later segment."""
        if tensor.stored not in self._padding:
            segment = self._makers.get(tensor.stored)
            if segment is None:
                raise ValueError(f"{tensor.stored} could not be computed")
            nodes = _before(segment.nodes, tensor.stored)
            reads = {
                name: segment.reads[name]
                for node in nodes
                for name in reads_of(node)
                if name in segment.reads
            }
            known = {
                name: originals[name] if name in originals else self._originals.see(name)
                for operand in reads.values()
                for name in operand.originals
            }
            got = self._candidate.part(
                nodes, self.of(Segment(nodes, reads), known), [tensor.stored]
            )
            self._padding[tensor.stored] = _taken(got[tensor.stored], tensor.padding)
        return self._padding[tensor.stored]


def _before(nodes: list[NodeProto], name: str) -> list[NodeProto]:
    """The nodes, in order, from which `name` is computed."""
    found: list[NodeProto] = []
    wanted = {name}
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted |= reads_of(node)
    return found[::-1]


def _taken(values: np.ndarray, places: list[int]) -> np.ndarray:
    """Some channels of a tensor. Raises ValueError if it has fewer."""
    if max(places) >= values.shape[-1]:
        raise ValueError(f"a tensor of shape {values.shape} has no channel {max(places)}")
    return values[..., places]


def as_type(values: np.ndarray, dtype: np.dtype, range_of: np.dtype | None = None) -> np.ndarray:
    """`values` as `dtype`. Finite values stay finite: constants beyond the range of 16 bits become
    its limits."""
    target = np.dtype(range_of or dtype)
    if (
        not is_float(values.dtype)
        or not is_float(target)
        or target.itemsize >= values.dtype.itemsize
    ):
        return values.astype(dtype, copy=False)
    largest = LARGEST[target]
    return np.where(np.isfinite(values), np.clip(values, -largest, largest), values).astype(dtype)
