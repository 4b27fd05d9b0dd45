"""Compares every graph output of the whole model with the original's on the same inputs, by its
relative L2 error. Codes are compared as the values that they stand for: one that differs by a step
inside of a model changes others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto

from onnxbolt import tolerances
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph.drawn import drawn as drawn_at_random
from onnxbolt.graph.scopes import outer_reads, subgraphs
from onnxbolt.verify import nudges
from onnxbolt.verify.draws import OTHERS
from onnxbolt.verify.feeds import Feeds, drawn, graph_inputs
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import NOT_FINITE, Row
from onnxbolt.verify.session import RUNTIME_ERRORS, Runner, uses
from onnxbolt.verify.widen import SIXTEEN_BITS

_KIND = "output"
_DRAWN = "the model draws at random what it depends on"
_BLANK = "the original's output has only zeros, infinities and NaNs"


def rows(models: Models, feeds: Feeds) -> Iterator[Row]:
    """One row for each graph output. Outputs that random inputs cannot judge are compared on other
    random inputs, if some can judge them.

    Raises InputError where the original does not run on the inputs.
    """
    found = _outputs(models, feeds)
    unjudged = {row.name: row.unjudged for row in found if row.unjudged not in ("", _DRAWN)}
    better = dict(_redrawn(models, feeds, unjudged)) if unjudged and not models.inputs_given else {}
    yield from (better.get(row.name, row) for row in found)


def _outputs(models: Models, feeds: Feeds) -> list[Row]:
    """The rows for these inputs."""
    names = [value.name for value in models.original.graph.output]
    try:
        expected = _run(models, models.reference, feeds, names)
    except RUNTIME_ERRORS as error:
        raise InputError(
            f"the original model does not run on {models.where} with these inputs: {error}"
        ) from error
    try:
        got = _run(models, models.candidate, feeds, names)
    except RUNTIME_ERRORS as error:
        return [
            _failed(models, name, f"the optimized model does not run: {error}").judged()
            for name in names
        ]
    expected = _with_own_answers(models, feeds, got, expected)
    found = _judged(
        models, feeds, [_compared(models, name, got[name], expected[name]) for name in names]
    )
    inputs = {value.name for value in graph_inputs(models.original)}
    blank = {
        name
        for name in _following(models.original, inputs)
        if name in expected and _is_blank(expected[name])
    }
    found = [
        replace(row, passed=False, unjudged=_BLANK) if row.passed and row.name in blank else row
        for row in found
    ]
    random = _following(models.original, drawn_at_random(models.original))
    return [
        replace(row, passed=False, reason="", unjudged=_DRAWN)
        if row.name in random and row.error > row.limit and row.reason != NOT_FINITE
        else row
        for row in found
    ]


def _run(models: Models, runner: Runner, feeds: Feeds, names: Sequence[str]) -> Feeds:
    """The outputs of a model; codes as numbers, less their zero point."""
    zeros = models.zero_points
    return {
        name: values.astype(np.float32) - zeros[name] if name in zeros else values
        for name, values in runner.run(feeds, names).items()
    }


def _with_own_answers(models: Models, feeds: Feeds, got: Feeds, expected: Feeds) -> Feeds:
    """`expected`, with the 16-bit original's own outputs where they are as right as the reference:
    for indices, and for values that overflow in its type."""
    if not uses(models.original, SIXTEEN_BITS):
        return expected
    names = [name for name, values in expected.items() if _is_other(got[name], values)]
    if not names or models.rounded is None:
        return expected
    try:
        own = _run(models, models.rounded, feeds, names)
    except RUNTIME_ERRORS:
        return expected
    return expected | {
        name: _own_where_equal(got[name], own[name], expected[name]) for name in names
    }


def _is_other(got: np.ndarray, expected: np.ndarray) -> bool:
    """True for differences without a distance: integers that differ, and infinities or NaNs in
    different places."""
    if got.shape != expected.shape:
        return False
    return (
        not tolerances.same_non_finite(got, expected)
        if tolerances.is_float(expected)
        else bool((got != expected).any())
    )


def _own_where_equal(got: np.ndarray, own: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if own.shape != expected.shape:
        return expected
    if not tolerances.is_float(expected):
        return np.where(got == own, own, expected)
    return np.where(
        ~np.isfinite(own) & ((got == own) | (np.isnan(got) & np.isnan(own))), own, expected
    )


def _redrawn(
    models: Models, feeds: Feeds, unjudged: Mapping[str, str]
) -> Iterator[tuple[str, Row]]:
    """The rows of outputs that another kind of random inputs can judge."""
    left, shapes = dict(unjudged), {name: values.shape for name, values in feeds.items()}
    for number, draw in enumerate(OTHERS):
        if not left:
            return
        first, second = (drawn(models.original, shapes, 2 * number + seed, draw) for seed in (1, 2))
        if trusted := _trusted(models, first, second, list(left)):
            for row in _outputs(models, first):
                if row.name in trusted and not row.unjudged:
                    why = left.pop(row.name)
                    models.notes[
                        f"{models.where}, {row.name}: judged on inputs that are {draw.name},"
                        f" because on standard normal ones {why}"
                    ] = None
                    yield row.name, row


def _trusted(models: Models, feeds: Feeds, others: Feeds, names: Sequence[str]) -> list[str]:
    """The outputs of the original that rounding changes little, and that other inputs of the same
    kind change by at least DISCERNIBLE limits."""
    try:
        expected = _run(models, models.reference, feeds, names)
        names = [name for name in names if not _is_blank(expected[name])]
        other = _run(models, models.reference, others, names) if names else {}
    except RUNTIME_ERRORS:  # the model does not accept inputs of this kind
        return []
    yardsticks, cap = _yardsticks(models, feeds, names), models.cap

    def is_trusted(name: str) -> bool:
        values, yardstick = (
            expected[name],
            yardsticks.get(name, 0.0 if models.rounded is None else math.inf),
        )
        limit = (
            tolerances.limit(_limit(models, name), yardstick)
            if tolerances.is_float(values)
            else 0.0
        )
        distance = (
            tolerances.error(other[name], values) if other[name].shape == values.shape else math.inf
        )
        return yardstick <= cap and distance > 0 and distance >= tolerances.DISCERNIBLE * limit

    return [name for name in names if is_trusted(name)]


def _is_blank(values: np.ndarray) -> bool:
    """True if all finite values are zeros: a model that always returns zero would then seem
    right."""
    if values.dtype.kind in "OSU":
        return values.size == 0
    return (
        not (values[np.isfinite(values)] if tolerances.is_float(values) else values)
        .astype(bool)
        .any()
    )


def _following(model: ModelProto, tensors: set[str]) -> set[str]:
    """Tensors of the main graph that may change with these ones, and they themselves."""
    found = set(tensors)
    for node in model.graph.node:  # ONNX has them in order
        reads = {
            *node.input,
            *(
                name
                for attribute in node.attribute
                for graph in subgraphs(attribute)
                for name in outer_reads(graph)
            ),
        }
        if reads & found:
            found.update(node.output)
    return found - {""}


def _compared(models: Models, name: str, got: np.ndarray, expected: np.ndarray) -> Row:
    """A row with the limit of the table, without a verdict."""
    if got.shape != expected.shape:
        reason = f"shape {got.shape} instead of {expected.shape}"
        return replace(_failed(models, name, reason), error=math.inf)
    if not tolerances.is_float(expected):
        return Row(
            name, _KIND, models.where, tolerances.error(got, expected), 0.0, math.nan, math.nan
        )
    found, reason = tolerances.measure(got, expected), _blemish(models, got, expected)
    return Row(
        name,
        _KIND,
        models.where,
        found.relative_l2,
        _limit(models, name),
        found.max_abs,
        found.cosine,
        reason=reason,
    )


def _failed(models: Models, name: str, reason: str) -> Row:
    """A row of an output that could not be compared."""
    return Row(name, _KIND, models.where, math.nan, 0.0, math.nan, math.nan, reason=reason)


def _judged(models: Models, feeds: Feeds, found: Sequence[Row]) -> list[Row]:
    """Rows with their verdicts; those above the table's limit are compared with the effect that
    rounding alone has on the original. It may choose other indices, or more of them behind a
    threshold. Which ones it chooses depends on how it rounds: where one way explains nothing,
    others are tried."""
    above = [row.name for row in found if row.error > row.limit]
    yardsticks = _yardsticks(models, feeds, above)

    def judged(row: Row) -> Row:
        return row.judged(yardsticks.get(row.name, 0.0), models.cap)

    for seed in range(nudges.DRAWS):
        left = [row.name for row in found if row.name in above and judged(row).failed]
        if not left:
            break
        for name, error in _nudged(models, feeds, left, seed).items():
            yardsticks[name] = max(yardsticks.get(name, 0.0), error)
    return [judged(row) for row in found]


def _limit(models: Models, name: str) -> float:
    """The table's limit for an output. That of bodies in fp32 is less than a code in many."""
    exact = models.dtype is DType.F32 and models.library is None
    codes = name in models.zero_points
    return tolerances.BODIES if exact and not codes else tolerances.MODEL[models.dtype]


def _blemish(models: Models, got: np.ndarray, expected: np.ndarray) -> str:
    """A fault of the values other than their relative error, in words; empty if there is none."""
    if not tolerances.same_non_finite(got, expected):
        return NOT_FINITE
    if all(bound is None for bound in models.elementwise):
        return ""
    atol, rtol = (bound or 0.0 for bound in models.elementwise)
    close = np.allclose(
        got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
    )
    return "" if close else f"an element differs by more than {atol:g} + {rtol:g} |y0|"


def _yardsticks(models: Models, feeds: Feeds, names: Sequence[str]) -> dict[str, float]:
    """The error that rounding alone causes in tensors of the original; infinite where it changes
    the shape."""
    if not names or models.rounded is None:
        return {}
    try:
        got = _run(models, models.rounded, feeds, names)
    except RUNTIME_ERRORS as error:
        models.notes[
            f"the error of rounding alone is unknown: the original in {models.precision}"
            f" does not run on {models.where}: {error}"
        ] = None
        return {}
    return _errors(got, _run(models, models.reference, feeds, names))


def _nudged(models: Models, feeds: Feeds, names: Sequence[str], seed: int) -> dict[str, float]:
    """The errors that rounding causes where weights and inputs have one more rounding error each;
    none where the original does not run on these."""
    try:
        got = _run(
            models, models.nudged(seed), nudges.nudged_feeds(feeds, models.unit, seed), names
        )
    except RUNTIME_ERRORS:
        return {}
    return _errors(got, _run(models, models.reference, feeds, names))


def _errors(got: Feeds, expected: Feeds) -> dict[str, float]:
    """The error of each tensor; infinite where its shape differs."""
    return {
        name: tolerances.error(got[name], values) if got[name].shape == values.shape else math.inf
        for name, values in expected.items()
    }
