"""Compares the bodies of If, Loop and Scan, each as a model of its own, by segment and by node.

Bodies read the original's tensors around them. A loop's body is compared in its second iteration,
with the states that the original's first one computes, since many loops begin with zeros; in its
first one, where the original's body does not take these. A branch of an If is compared as well if
the inputs do not choose it, as long as the original's takes the tensors that it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
from onnx import TensorProto, ValueInfoProto

from onnxbolt.graph import weights
from onnxbolt.graph.bodies import Body, Value, placed
from onnxbolt.graph.element_types import numpy_dtype
from onnxbolt.verify import levels
from onnxbolt.verify.elementwise import failed
from onnxbolt.verify.feeds import Feeds, graph_inputs
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import Row
from onnxbolt.verify.session import RUNTIME_ERRORS


def rows(models: Models, feeds: Feeds, places: tuple[str, ...] = ()) -> Iterator[Row]:
    """The rows of all bodies, those inside of bodies included."""
    models = models.resolved
    for body, inner in models.bodies:
        path = (*places, body.place)
        place = placed(path)
        if isinstance(inner, str):
            row = failed(models, body.owner, inner, "segment")
            yield dataclasses.replace(row, body=place)
            continue
        try:
            given = _given(models, body, inner, feeds)
        except RUNTIME_ERRORS as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            models.notes[
                f"{models.where}, {place}: not compared by itself, because the original's does not"
                f" run on the tensors that it reads: {why}"
            ] = None
            continue
        for row in levels.rows(inner, given):
            yield dataclasses.replace(row, body=place)
        yield from rows(inner, given, path)


def _given(models: Models, body: Body, inner: Models, feeds: Feeds) -> Feeds:
    """The inputs of a body. Raises one of RUNTIME_ERRORS where the original's does not run."""
    around = _around(models, body, feeds)
    inputs = graph_inputs(inner.original)
    first = {value.name: _value(value, body.values[value.name], around, 0) for value in inputs}
    results = inner.reference.run(first, list(body.states.values()))
    second = {value.name: _value(value, body.values[value.name], around, 1) for value in inputs}
    for name, following in body.states.items():
        if name in second:
            second[name] = results[following].astype(second[name].dtype)
    try:
        inner.reference.run(second, [])
    except RUNTIME_ERRORS:
        return first
    return second


def _around(models: Models, body: Body, feeds: Feeds) -> Mapping[str, np.ndarray]:
    """The original's tensors around a body that its inputs are made of, by name."""
    constants = {tensor.name: tensor for tensor in models.original.graph.initializer}
    found = dict(feeds) | {
        value.name: weights.values(constants[value.name])
        for value in body.values.values()
        if value.name in constants
    }
    names = {value.name for value in body.values.values()} - found.keys() - {""}
    return found | (models.reference.run(feeds, sorted(names)) if names else {})


def _value(
    declared: ValueInfoProto, value: Value, around: Mapping[str, np.ndarray], iteration: int
) -> np.ndarray:
    """An input of a body in an iteration; a state is the first one's."""
    kind = declared.type.tensor_type.elem_type
    dtype = numpy_dtype(kind)
    if not isinstance(dtype, np.dtype):
        raise ValueError(f"{declared.name} is not a tensor")
    if not value.name:
        return np.array(kind == TensorProto.BOOL or iteration, dtype)
    array = around[value.name]
    if value.axis is not None:
        count = array.shape[value.axis]
        place = min(iteration, count - 1)
        array = np.take(array, count - 1 - place if value.reverse else place, value.axis)
    return array.astype(dtype, copy=False)
