"""Tries changes: each on a copy of the model, which is planned again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnx import ModelProto

from onnxbolt.advice.change import SAME, Change, Obstacle
from onnxbolt.advice.deepening import Deepening
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.explanation import Advice
from onnxbolt.advice.forecast import Forecast, Forecaster
from onnxbolt.errors import InputError


@dataclass(frozen=True)
class Tried:
    """A change, the advice that it would be, and the changed model."""

    change: Change
    advice: Advice
    model: ModelProto
    forecast: Forecast


@dataclass(frozen=True)
class Combined:
    """Changes that were made one after another, as one advice, and their model."""

    advice: Advice
    model: ModelProto
    forecast: Forecast
    count: int


class Trials:
    """Trials of one model's changes; `threshold` is the share of the whole time that counts."""

    def __init__(self, model: ModelProto, forecaster: Forecaster, threshold: float) -> None:
        self.model, self._forecaster, self._threshold = model, forecaster, threshold
        self.base = forecaster.of(model)
        self.archs = tuple(forecaster.archs)

    def of(self, change: Change, model: ModelProto | None = None) -> Tried | Obstacle:
        """The change of `model`, which may have been changed before, beside the model as it
        was."""
        try:
            changed = change.applied(self.model if model is None else model)
            forecast = self._forecaster.of(changed)
        except InputError as error:
            return Obstacle(change.kind, change.nodes, f"{change.words}: {error}")
        advice = Advice(
            change.key,
            change.kind,
            change.words,
            change.nodes,
            change.results,
            change.needs_retraining,
            self.base.ms,
            forecast.ms,
            self.base.gain(forecast),
        )
        return Tried(change, advice, changed, forecast)

    def together(self, tried: Sequence[Tried]) -> Combined | None:
        """The changes that go together, the best first; each saves `threshold` of the time that is
        left. None if none does."""
        left = {each.change.key: each for each in tried}
        best = max(tried, key=lambda each: each.advice.gain, default=None)
        done = list[Tried]()
        while best is not None:
            done.append(best)
            del left[best.change.key]
            best = self._next(best, left.values())
        return _combined(done) if done else None

    def _next(self, last: Tried, left: Iterable[Tried]) -> Tried | None:
        """The best of `left` behind `last`, found anew in its model; None if none is worth it."""
        draft, found = Draft(last.model, last.forecast.point), list[Tried]()
        keys = {each.change.key for each in left}
        for kind in dict.fromkeys(type(each.change) for each in left):
            for change in kind.find(draft):
                if isinstance(change, Change) and change.key in keys:
                    tried = self.of(change, last.model)
                    if isinstance(tried, Tried):
                        found.append(tried)
        best = max(found, key=lambda each: last.forecast.gain(each.forecast), default=None)
        if best is None or last.forecast.gain(best.forecast) < self._threshold:
            return None
        return best

    def deepened(self, changes: Sequence[Deepening]) -> Tried | None:
        """As many further layers, the cheapest first, as cost less than `threshold` together; None
        if none does."""
        costs = dict[Deepening, float]()
        for change in changes:
            tried = self.of(change)
            if isinstance(tried, Tried):
                costs[change] = -tried.advice.gain
        best: Tried | None = None
        layers: Deepening | None = None
        for change in sorted(costs, key=lambda each: costs[each] / len(each.layers)):
            more = change if layers is None else layers.with_layers(change)
            tried = self.of(more)
            if not isinstance(tried, Tried) or -tried.advice.gain >= self._threshold:
                break
            best, layers = tried, more
        return best


def _combined(done: Sequence[Tried]) -> Combined:
    last = done[-1]
    results = dict.fromkeys(each.change.results for each in done if each.change.results != SAME)
    advice = replace(
        last.advice,
        key=" + ".join(each.change.key for each in done),
        kind="total",
        words="; ".join(each.change.words for each in done),
        nodes=tuple(dict.fromkeys(name for each in done for name in each.change.nodes)),
        results="; ".join(results) or SAME,
        needs_retraining=any(each.change.needs_retraining for each in done),
    )
    return Combined(advice, last.model, last.forecast, len(done))
