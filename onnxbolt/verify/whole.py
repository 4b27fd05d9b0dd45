"""The whole model: every graph output against the original's, on the same inputs, by its error as a whole."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import ModelProto, TensorProto

from onnxbolt import tolerances
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.precision import LOW
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import NOT_FINITE, Row
from onnxbolt.verify.session import RUNTIME_ERRORS


def rows(models: Models, feeds: Feeds) -> Iterator[Row]:
    """One row for each graph output. Raises InputError where the original does not run on the inputs."""
    names = [value.name for value in models.original.graph.output]
    expected = run_reference(models, feeds, names)
    try:
        got = models.candidate.run(feeds, names)
    except RUNTIME_ERRORS as error:
        yield from (failed(models, name, f"the optimized model does not run: {error}") for name in names)
        return
    yield from judged(models, feeds, [compared(models, name, got[name], expected[name]) for name in names])


def run_reference(models: Models, feeds: Feeds, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The original's values of `names`."""
    try:
        return models.reference.run(feeds, names)
    except RUNTIME_ERRORS as error:
        raise InputError(f"the original model does not run on {models.where} with these inputs: {error}") from error


def failed(models: Models, name: str, reason: str, level: str = "model", kind: str = "output", node: str = "") -> Row:
    """A row of a tensor that could not be compared."""
    return Row(name, kind, models.where, math.nan, 0.0, math.nan, math.nan, reason=reason, node=node, level=level)


def compared(models: Models, name: str, got: np.ndarray, expected: np.ndarray, level: str = "model", kind: str = "output",
             node: str = "") -> Row:
    """A row with the table's limit, without a verdict."""
    if got.shape != expected.shape:
        return failed(models, name, f"shape {got.shape} instead of {expected.shape}", level, kind, node)
    if not tolerances.is_float(expected):
        return Row(name, kind, models.where, tolerances.error(got, expected), 0.0, math.nan, math.nan, node=node, level=level)
    found, reason = tolerances.measure(got, expected), _blemish(models, got, expected)
    return Row(name, kind, models.where, found.relative_l2, _limit(models), found.max_abs, found.cosine,
               reason=reason, node=node, level=level)


def judged(models: Models, feeds: Feeds, found: Sequence[Row]) -> list[Row]:
    """Rows with their verdicts: those above the table's limit are held against what rounding alone does to the original."""
    yardsticks = _yardsticks(models, feeds, [row.name for row in found if row.error > row.limit > 0])
    return [row.judged(yardsticks.get(row.name, 0.0)) for row in found]


def _limit(models: Models) -> float:
    """The table's limit; a model that is in 16 bits already is judged like one that was converted."""
    low = LOW.get(models.precision) or _weights_dtype(models.original)
    if low is not None:
        return tolerances.MODEL[low]
    return tolerances.BODIES if models.library is None else tolerances.MODEL[DType.F32]


def _blemish(models: Models, got: np.ndarray, expected: np.ndarray) -> str:
    """What is wrong with the values beside their error as a whole."""
    if not tolerances.same_non_finite(got, expected):
        return NOT_FINITE
    if all(bound is None for bound in models.elementwise):
        return ""
    atol, rtol = (bound or 0.0 for bound in models.elementwise)
    close = np.allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
    return "" if close else f"an element differs by more than {atol:g} + {rtol:g} |y0|"


def _yardsticks(models: Models, feeds: Feeds, names: Sequence[str]) -> dict[str, float]:
    """The error that rounding alone makes in tensors of the original."""
    if not names or models.rounded is None:
        return {}
    names = list(dict.fromkeys(names))
    try:
        got = models.rounded.run(feeds, names)
    except RUNTIME_ERRORS as error:
        models.notes[f"no yardstick: the original in {models.precision} does not run on {models.where}: {error}"] = None
        return {}
    expected = models.reference.run(feeds, names)
    # where rounding changes even the shape (what a threshold lets pass), there is nothing to compare with
    return {name: tolerances.error(got[name], expected[name]) for name in names if got[name].shape == expected[name].shape}


def _weights_dtype(model: ModelProto) -> DType | None:
    """The 16-bit type of a model that has weights or inputs in one."""
    types = {t.data_type for t in model.graph.initializer} | {value.type.tensor_type.elem_type for value in model.graph.input}
    return DType.BF16 if TensorProto.BFLOAT16 in types else DType.F16 if TensorProto.FLOAT16 in types else None
