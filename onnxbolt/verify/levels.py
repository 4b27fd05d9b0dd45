"""Levels 1 and 2 of verification.

Level 1: each segment of the optimized model (segments.py) runs on the original's tensors, in the
form in which the optimized model stores them, and its results are compared with the original's
tensors; limits allow for the rounding of the inputs. Errors do not accumulate over the model, so
limits can be tight. Level 2: each of our nodes in the segment is compared with float64, on the same
inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx

from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph import weights
from onnxbolt.graph.drawn import drawn
from onnxbolt.verify.bounds import Bounded, is_float
from onnxbolt.verify.codes import is_code
from onnxbolt.verify.declared import undeclared
from onnxbolt.verify.elementwise import compared, failed
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.limits import FP32_OPERANDS, unit
from onnxbolt.verify.models import Models
from onnxbolt.verify.nodes import Nodes
from onnxbolt.verify.operands import Operands, as_type
from onnxbolt.verify.originals import Originals, reads_of
from onnxbolt.verify.own_errors import OwnErrors
from onnxbolt.verify.result import Row
from onnxbolt.verify.rules import Env
from onnxbolt.verify.segments import Plan, Segment, other_constants, plan
from onnxbolt.verify.session import RUNTIME_ERRORS, uses
from onnxbolt.verify.stored import Known, Piece
from onnxbolt.verify.widen import SIXTEEN_BITS

Arrays = dict[str, np.ndarray]


def rows(models: Models, feeds: Feeds) -> Iterator[Row]:
    """A row for each known tensor that a changed part of the model computes, and for each output of
    one of our nodes.

    Raises InputError if the original does not run on the inputs.
    """
    models = models.resolved
    for name, why in undeclared(models.original, models.optimized):
        yield failed(models, name, why, "segment")
    found = plan(
        models.reference.skeleton,
        models.candidate.skeleton,
        other_constants(models.original, models.optimized),
    )
    for node, name in found.orphans:
        yield failed(models, name, "the original model has no such tensor", "segment", node.name)
    judge = _Judge(models, feeds, found)
    for segment in found.segments:
        yield from judge.rows(segment)
    models.notes.update(judge.notes())


class _Judge:
    """Runs the segments in their order, and compares their results."""

    def __init__(self, models: Models, feeds: Feeds, found: Plan) -> None:
        self._models, self._inputs = models, set(feeds)
        self._originals = Originals(models.reference, feeds, found.uses)
        self._operands = Operands(models.candidate, self._originals, found)
        self._nodes = Nodes(models)
        self._own_errors = OwnErrors(models, self._nodes.measured)
        # inputs that nothing rounds
        self._exact = {name: a for name, a in feeds.items() if not is_float(a.dtype)}
        self._initializers = {tensor.name: tensor for tensor in models.optimized.graph.initializer}
        self._before = {tensor.name: tensor for tensor in models.original.graph.initializer}
        self._sparse = {tensor.values.name for tensor in models.optimized.graph.sparse_initializer}
        # a constant may be stored in fp32 and still have been rounded, by the precision stage or
        # in an original of 16 bits, whose formulas' constants are
        rounded = models.dtype is not DType.F32
        self._constants = unit(models.dtype.numpy) if rounded else FP32_OPERANDS
        # values that exceed the range of 16 bits then do so in the original, too
        self._overflows = uses(models.original, SIXTEEN_BITS)
        self._drawn = drawn(models.original)
        self._unjudged = self._random = 0

    def notes(self) -> dict[str, None]:
        """Sentences that a user needs to interpret the rows."""
        found = self._nodes.notes()
        if self._unjudged:
            found[
                f"{self._unjudged} integer tensors were not compared by segment, because"
                " they depend on rounded values"
            ] = None
        if self._random:
            found[
                f"{self._random} tensors were not compared by segment, because the model draws"
                " them at random"
            ] = None
        return found

    def rows(self, segment: Segment) -> Iterator[Row]:
        try:
            originals = {name: self._originals.take(name) for name in segment.originals}
        except RUNTIME_ERRORS as error:
            raise InputError(
                f"the original model does not run on {self._models.where} with these inputs:"
                f" {error}"
            ) from error
        try:
            operands = self._operands.of(segment, originals)
            inner = self._nodes.inner(segment)
            got = self._models.candidate.part(
                segment.nodes, operands, [*(t.stored for t in segment.writes), *inner]
            )
            self._operands.computed(segment, got)
        except RUNTIME_ERRORS as error:
            reason = f"the optimized model does not run: {error}"
            for tensor, piece in _written(segment):
                yield failed(self._models, piece.name, reason, "segment", tensor.node)
            return
        env = self._bounds(segment, operands)
        analysed = self._nodes.analyse(segment.nodes, env)
        env |= {  # rules have no bounds for some outputs, such as a LayerNormalization's mean
            tensor.stored: self._by_table(got[tensor.stored])
            for tensor in segment.writes
            if not analysed or tensor.stored not in env
        }
        yield from self._nodes.rows(segment, operands, got, env)
        for tensor, piece in _written(segment):
            stored = tensor.stored
            yield from self._row(piece, tensor.node, got[stored], env[stored], originals)

    def _bounds(self, segment: Segment, operands: Arrays) -> Env:
        """The inputs of a segment, with the errors of their rounding."""
        env = {}
        for name, values in operands.items():
            exact = segment.reads[name].stored in self._inputs
            env[name] = Bounded.of(values, 0.0 if exact else max(unit(values.dtype), FP32_OPERANDS))
        for name in {name for node in segment.nodes for name in reads_of(node)} & (
            self._initializers.keys() | self._sparse
        ):
            values = self._constant(name)
            error = self._rounding(name, values)
            # float32's largest numbers have become bfloat16's largest, which is more than a
            # rounding
            env[name] = found = Bounded.of(values, error / (1 - error))
            if error and (folding := self._own_errors.of_constant(name, values.shape)) is not None:
                env[name] = dataclasses.replace(
                    found, operands=found.absolute(found.operands) + folding
                )
        return env

    def _rounding(self, name: str, values: np.ndarray) -> float:
        """The relative error of an initializer's `values`."""
        if not is_float(values.dtype):
            return 0.0
        before = self._before.get(name) if values.dtype == np.float32 else None
        if before is not None and np.array_equal(weights.values(before), values):
            return FP32_OPERANDS
        return max(unit(values.dtype), self._constants)

    def _constant(self, name: str) -> np.ndarray:
        """An initializer as the optimized model computes with it."""
        if name in self._sparse:
            dense = onnx.helper.make_node("Identity", [name], [f"{name}//dense"])
            return self._models.candidate.part([dense], {}, dense.output)[dense.output[0]]
        values = weights.values(self._initializers[name])
        widened = values.dtype == ml_dtypes.bfloat16 and not self._models.candidate.bfloat16
        return values.astype(np.float32) if widened else values

    def _by_table(self, got: np.ndarray) -> Bounded:
        """The limit of a tensor without a computed bound: 16 roundings of its largest value."""
        if not is_float(got.dtype):
            return Bounded(got, got.dtype)
        largest = float(
            np.abs(got, where=np.isfinite(got), out=np.zeros(got.shape)).max(initial=0.0)
        )
        return Bounded(
            got, got.dtype, np.full(got.shape, 16 * max(unit(got.dtype), self._constants) * largest)
        )

    def _row(
        self, piece: Piece, node: str, got: np.ndarray, limits: Bounded, originals: Arrays
    ) -> Iterator[Row]:
        name, expected = piece.name, originals[piece.name]
        if name in self._drawn:
            self._random += 1
            return
        try:
            expected = piece.stored(expected)
            expected = (
                expected if self._overflows else as_type(expected, expected.dtype, limits.dtype)
            )
        except (ValueError, IndexError) as error:
            yield failed(
                self._models,
                name,
                f"its layout or channel map does not fit: {error}",
                "segment",
                node,
            )
            return
        limit = limits.absolute(limits.arithmetic) + limits.absolute(limits.operands)
        # limits of a node that writes a part of its output are those of that part already
        if got.ndim and limit.shape == got.shape:
            limit = limit[..., piece.begin : piece.end]
        if got.ndim:  # a scalar has no parts
            got = got[..., piece.begin : piece.end]
        real: slice | list[int] = slice(None)  # indices of the last axis that are not padding
        if piece.channels is not None and got.shape == expected.shape:
            real = [place for place, channel in enumerate(piece.channels) if channel >= 0]
            got, expected, limit = (values[..., real] for values in (got, expected, limit))
        comparable = is_float(expected.dtype) or is_code(expected.dtype)
        if not comparable and np.isinf(limit).any():
            self._unjudged += 1
            return

        def judged(limit: np.ndarray) -> Row:
            dtype = limits.dtype if self._overflows else None
            return compared(self._models, name, got, expected, limit, "segment", node, dtype)

        row = judged(limit)
        # the original's own error belongs to the limit, but takes as long as the segment's
        # analysis, so it is computed only if the tensor fails without it
        if row.failed and got.shape == expected.shape and comparable:
            own = self._own_errors.between(name, self._exact | originals)
            row = row if own is None else judged(limit + piece.stored(own)[..., real])
        yield row


def _written(segment: Segment) -> Iterator[tuple[Known, Piece]]:
    """The tensors that a segment writes, with each tensor of the original that lies in them."""
    return ((tensor, piece) for tensor in segment.writes for piece in tensor.written)
