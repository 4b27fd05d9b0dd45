"""Chooses the precision of each product by time and error: 8 bits where they gain most for the
least error, the rest in floats.

For int8 and for fp8, each product's gain is its time in a plan of all floats less its time in a
plan of all codes; its error is that of a model in which it alone is quantized. Products go from
floats to codes in the order of error per gain. Of the models along this way, some are made, planned
and compared with the model of floats on all calibration data: those around the limit, which
bisection finds, and a few between. The fastest within the limit is chosen.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.graph.weights import Weights, complete
from onnxbolt.options import CODES, METHODS
from onnxbolt.precision import rounded_apart
from onnxbolt.quantize import running
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.making import Calibration, Quantized
from onnxbolt.quantize.metric import Metric, worst
from onnxbolt.quantize.pairs import switch_of, weight_switch_of
from onnxbolt.quantize.scales import Assigned, Point

logger = logging.getLogger(__name__)

_HALF, _WIDE = "fp16", "keep"
_STEPS = 6  # bisection reaches 1 in 64 products
_PARTS = 4  # points of the front that are compared whatever the limit


@dataclass(frozen=True)
class Times:
    """Microseconds of a planned model: of all its nodes, and of each fused node with the source
    nodes that it replaces."""

    us: float
    fused: tuple[tuple[float, tuple[str, ...]], ...]

    def of(self, names: Sequence[str]) -> dict[str, float]:
        """The times of products; those of one kernel share its time."""
        known, found = frozenset(names), dict[str, float]()
        for us, sources in self.fused:
            own = [name for name in dict.fromkeys(sources) if name in known]
            for name in own:
                found[name] = found.get(name, 0.0) + us / len(own)
        return found


# plans a model; further arguments: the type of what is not in codes, and whether kernels that are
# not known yet may be measured
Timed: TypeAlias = Callable[[ModelProto, str, bool], Times]


@dataclass(frozen=True)
class _Made:
    point: Point
    quantized: Quantized
    decisions: tuple[Assigned, ...]


def searched(
    model: ModelProto,
    data: Data,
    method: str,
    limit: float,
    timed: Timed,
    metric: Metric | None = None,
) -> Quantized:
    """The fastest model whose error is within the limit; its scales have all points that were
    compared. Raises InputError where nothing could be quantized."""
    judge = _Judge(model, data, metric, limit)
    found, faults = list[_Made](), list[InputError]()
    for precision in CODES:
        try:
            own = method if precision == "int8" else METHODS[0]
            way = _Way(Calibration(model, precision, data, own), judge, timed)
        except InputError as error:
            faults.append(error)
            continue
        if not found:
            found.append(way.of_floats())
        found += way.points()
    if not found:
        raise faults[0]
    for fault in faults:
        logger.warning("not tried: %s", fault)
    points = sorted({made.point for made in found}, key=lambda point: (point.us, point.error))
    within = [made for made in found if made.point.error <= limit]
    best = min(within or found[:1], key=lambda made: (made.point.us, made.point.error))
    scales = replace(
        best.quantized.scales,
        floats=judge.floats,
        points=tuple(points),
        chosen=best.point,
        decisions=best.decisions,
    )
    return replace(best.quantized, scales=scales)


class _Judge:
    """Compares models with the one of floats, and decides the type of what is not quantized: fp16,
    unless its error alone exceeds the limit."""

    def __init__(self, model: ModelProto, data: Data, metric: Metric | None, limit: float) -> None:
        self._model, self._data, self._metric, self.limit = model, data, metric, limit
        half = self.errors(*rounded_apart(model, _HALF))
        self.floats = _HALF if worst(half) <= limit else _WIDE
        self._rounding = half if self.floats == _HALF else dict.fromkeys(half, 0.0)

    @property
    def of_floats(self) -> dict[str, float]:
        """The error of the model without codes."""
        return self._rounding

    def errors(self, model: ModelProto, large: Weights) -> dict[str, float]:
        """The errors of a model on all data."""
        return running.errors(self._model, model, large, self._data, self._metric)

    def with_rounding(self, errors: Mapping[str, float]) -> dict[str, float]:
        """The errors with those of what is not quantized, which add up as squares; a metric's as
        they are."""
        if self._metric:
            return {name: error + self._rounding[name] for name, error in errors.items()}
        return {name: math.hypot(error, self._rounding[name]) for name, error in errors.items()}

    def alone(
        self, calibration: Calibration, units: Mapping[str, frozenset[str]]
    ) -> dict[str, float]:
        """The error of the model in which one product alone is quantized, for each."""
        first = next(iter(self._data))
        found = running.alone(*calibration.switched(), first, units, self._metric)
        return {name: worst(errors) for name, errors in found.items()}


class _Way:
    """The way from all floats to all codes of one type."""

    def __init__(self, calibration: Calibration, judge: _Judge, timed: Timed) -> None:
        self._calibration, self._judge, self._timed = calibration, judge, timed
        self._placement = calibration.placement()
        self.names = [product.node.name for product in self._placement.products]

    def _times(self, model: tuple[ModelProto, Weights], measured: bool = False) -> Times:
        return self._timed(complete(*model), self._judge.floats, measured)

    def of_floats(self) -> _Made:
        """The model without codes, in the form that is quantized."""
        us = self._times(self._calibration.floats, measured=True).us
        errors = self._judge.of_floats
        calibration = self._calibration
        scales = replace(
            calibration.known, scales={}, balanced={}, errors=errors, left=tuple(sorted(self.names))
        )
        point = Point(self._judge.floats, 0, round(us, 3), worst(errors))
        return _Made(point, Quantized(calibration.model, {}, scales, ()), ())

    def points(self) -> list[_Made]:
        """The compared models, with their decisions."""
        decisions = self._decisions()
        order = [each.node for each in decisions if each.precision == self._calibration.precision]
        found = dict[int, _Made]()

        def at(count: int) -> _Made:
            if count not in found:
                found[count] = self._made(order[:count], decisions)
            return found[count]

        for part in range(1, _PARTS + 1):
            if count := len(order) * part // _PARTS:
                at(count)
        good = [c for c, made in found.items() if made.point.error <= self._judge.limit]
        within = max(good, default=0)
        beyond = min((count for count in found if count > within), default=within)
        for _ in range(_STEPS):
            if beyond - within < 2:
                break
            middle = (within + beyond) // 2
            if at(middle).point.error <= self._judge.limit:
                within = middle
            else:
                beyond = middle
        every = [] if len(order) == len(self.names) else [self._made(self.names, decisions)]
        return [*found.values(), *every]

    def _decisions(self) -> list[Assigned]:
        """A decision for each product, those first that gain most for the least error. Those that
        gain nothing stay floats."""
        whole = self._calibration.quantized()
        codes = self._times((whole.model, whole.large), measured=True).of(self.names)
        floats = self._times(self._calibration.floats).of(self.names)
        alone = self._judge.alone(self._calibration, self._units())
        decisions = list[Assigned]()
        for name in self.names:
            ours, theirs = codes.get(name, math.inf), floats.get(name, math.inf)
            gains = math.isfinite(ours) and ours < theirs
            precision = self._calibration.precision if gains else self._judge.floats
            mine, other = (round(us, 3) if math.isfinite(us) else 0.0 for us in (ours, theirs))
            decisions.append(Assigned(name, precision, mine, other, alone[name]))

        def worth(each: Assigned) -> float:
            gain = each.floats_us - each.us
            return each.error**2 / gain if gain > 0 else math.inf

        return sorted(decisions, key=worth)

    def _units(self) -> dict[str, frozenset[str]]:
        """For each product, the switches of what is rounded where it alone is quantized: tensors,
        and its weight."""
        rounded = {t.name for group in self._placement.groups for t in group}
        found = dict[str, frozenset[str]]()
        for name in self.names:
            alone = self._calibration.only(name)
            tensors = {t.name for group in alone.groups for t in group}
            switches = {switch_of(tensor) for tensor in tensors & rounded}
            found[name] = frozenset(switches | {weight_switch_of(name)})
        return found

    def _made(self, names: Sequence[str], decisions: Sequence[Assigned]) -> _Made:
        leave = frozenset(self.names) - frozenset(names)
        made = self._calibration.quantized(leave)
        errors = self._judge.with_rounding(self._judge.errors(made.model, made.large))
        us = self._times((made.model, made.large)).us
        precision = self._calibration.precision
        point = Point(precision, len(names), round(us, 3), worst(errors))
        taken = tuple(
            replace(each, precision=precision if each.node in names else self._judge.floats)
            for each in decisions
        )
        scales = replace(made.scales, errors=errors)
        return _Made(point, replace(made, scales=scales), taken)
