"""`onnxbolt explain`: why parts of a model are not fused or not at their best, and which changes of
the model would make it faster.

Each advice is a what-if: a copy of the model is changed, planned again by the stages of `optimize`,
and both predicted times of the whole model are compared. Whatever saves less than THRESHOLD is no
advice. This is Bolt's third level, system-friendly models (Xing et al. 2022, section 3.3).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

from onnx import ModelProto

from onnxbolt import extensions
from onnxbolt.advice import measuring
from onnxbolt.advice.change import Change, Obstacle
from onnxbolt.advice.deepening import Deepening
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.explanation import Advice, Explanation
from onnxbolt.advice.findings import UNALIGNED, Finding, all_findings
from onnxbolt.advice.forecast import Forecast, Forecaster, opt_point
from onnxbolt.advice.kinds import FASTER
from onnxbolt.advice.trials import Trials, Tried
from onnxbolt.archs import by_name
from onnxbolt.errors import AdviceError, InputError
from onnxbolt.extra_ops import registered
from onnxbolt.graph.bodies import located
from onnxbolt.graph.source import Source, opened
from onnxbolt.options import Choices, Options, takes_options
from onnxbolt.output import Output
from onnxbolt.pipeline import default_archs, promised
from onnxbolt.plan.cost import learned_from
from onnxbolt.precision.kernel_table import kernels_of
from onnxbolt.skips import near
from onnxbolt.spelling import option
from onnxbolt.tune import lockfile
from onnxbolt.tune.cuda import Stream

__all__ = ["THRESHOLD", "Advice", "Explanation", "Finding", "explain", "explained"]

THRESHOLD = 0.03  # a share of the whole model's time
_AS_IS = "the model as it is"


@takes_options
def explain(
    source: Source,
    *,
    nodes: str | Sequence[str] = (),
    measure: bool = False,
    write_model: str | Path | None = None,
    options: Options | None = None,
    progress: Callable[[str], None] | None = None,
    **choices: Unpack[Choices],
) -> Explanation:
    """Explain how `optimize` would plan `source`, and try changes of it.

    `nodes`: only findings and advices that concern these source nodes. `measure`: time every advice
    on the local GPU as well; Options.tune holds for these models, budget for all of them together,
    and verify for the model as it is. `write_model`: write the model with the changes of `total`,
    or of the only advice, there. The other keywords are fields of `Options`.

    Raises InputError if the model, a name or an option cannot be used as given, and if there is no
    GPU to measure on; AdviceError, which has the explanation, if there is no advice to write; and
    with `measure` what `optimize` raises.
    """
    options = dataclasses.replace(options or Options(), **choices)
    stream = measuring.require_gpu() if measure else None
    say = progress or (lambda message: None)
    return explained(source, nodes, measure, write_model, options, stream, say)


def explained(
    source: Source,
    nodes: str | Sequence[str],
    measure: bool,
    write_model: str | Path | None,
    options: Options,
    stream: Stream | None,
    say: Callable[[str], None],
    deepen: bool = True,
) -> Explanation:
    """As `explain`, with times of the GPU of `stream`; without one of the CPU, with function bodies
    instead of kernels. Without `deepen` no layers are added."""
    extensions.load()
    with (
        learned_from(options.cost_model),
        registered(options.custom_ops),
        Output(source, write_model) as output,
        opened(source) as given,
    ):
        model, _ = promised(given, options)
        say(f"planning {_AS_IS}")
        trials = Trials(model, _forecaster(model, options), THRESHOLD)
        outcome = _Outcome(trials, _wanted(nodes, trials.base), say, deepen)
        name = str(source) if isinstance(source, str | Path) else ""
        found = outcome.explanation(name, options)
        if measure:
            found = outcome.measured(found, options, stream)
        if write_model is not None:
            output.write(outcome.model(write_model, found), {}, options.save_as_external_data)
            output.commit()
    return found


def _forecaster(model: ModelProto, options: Options) -> Forecaster:
    lock = lockfile.open_for(options)
    archs = [by_name(name).number for name in options.archs or default_archs()]
    kernels = kernels_of(options.ort_version)
    untuned = dataclasses.replace(options, tune=False, budget=None, strategy="")
    point = opt_point(model, options)
    return Forecaster(untuned, archs, kernels, lock.timings(options.frozen), point)


def _wanted(nodes: str | Sequence[str], base: Forecast) -> frozenset[str]:
    """The source nodes that are asked for, as findings name them: with its place, or all places,
    in bodies. Raises InputError for a name that is none."""
    wanted = frozenset([nodes] if isinstance(nodes, str) else nodes)
    known: dict[str, set[str]] = defaultdict(set)
    for account in (each.part.account for each in base.planned):
        sources = [node.provenance for node in account.graph.nodes]
        for name in itertools.chain(*sources, *(row.source_nodes for row in account.fused)):
            known[name].add(place := located(name, account.body))
            known[place].add(place)
    problems = [
        f"{option('node', name)}: the model has no such node{near(name, known)}"
        for name in sorted(wanted - known.keys())
    ]
    if problems:
        raise InputError("; ".join(problems))
    return frozenset().union(*(known[name] for name in wanted))


class _Outcome:
    """All trials of a model, and what they come to."""

    def __init__(
        self, trials: Trials, wanted: frozenset[str], say: Callable[[str], None], deepen: bool
    ) -> None:
        self._trials, self._wanted, self._say = trials, wanted, say
        draft = Draft(trials.model, trials.base.point)
        self._obstacles = list[Obstacle]()
        self._advised, self._small = list[Tried](), list[Advice]()
        for kind in FASTER:
            for change in filter(self._concerns, kind.find(draft)):
                if isinstance(change, Change):
                    say(f"trying to {change.words}")
                self._note(change)
        self._total = trials.together(self._advised)
        found = Deepening.find(draft) if deepen else ()
        deeper = [c for c in found if isinstance(c, Deepening)]
        self._free = trials.deepened([change for change in deeper if self._concerns(change)])

    def _concerns(self, found: Change | Obstacle) -> bool:
        return not self._wanted or not self._wanted.isdisjoint(found.nodes)

    def _note(self, found: Change | Obstacle) -> None:
        tried = self._trials.of(found) if isinstance(found, Change) else found
        if isinstance(tried, Obstacle):
            self._obstacles.append(tried)
        elif tried.advice.gain >= THRESHOLD:
            self._advised.append(tried)
        else:
            self._small.append(tried.advice)  # the changed model is not needed any more

    def explanation(self, name: str, options: Options) -> Explanation:
        base = self._trials.base
        archs = self._trials.archs
        several = self._total if self._total and self._total.count > 1 else None
        return Explanation(
            name,
            options.precision,
            archs,
            base.uses_measurements,
            base.ms,
            THRESHOLD,
            tuple(self._findings()),
            _by_gain(tried.advice for tried in self._advised),
            several.advice if several else None,
            self._free.advice if self._free else None,
            _by_gain(self._small),
            tuple(self._obstacles),
        )

    def _findings(self) -> Iterator[Finding]:
        """The findings with their advices; padding is one only where less of it would be faster."""
        advices = [tried.advice for tried in self._advised]
        for finding in all_findings(self._trials.base.planned, self._trials.archs):
            if self._wanted and finding.node not in self._wanted:
                continue
            keys = tuple(advice.key for advice in advices if finding.node in advice.nodes)
            if keys or finding.state != UNALIGNED:
                yield dataclasses.replace(finding, advices=keys)

    def model(self, path: str | Path, found: Explanation) -> ModelProto:
        """The model with all changes that go together. Raises AdviceError if there are none."""
        if self._total is None:
            raise AdviceError(
                f"{option('write_model', path)}: no model is written, since there is no advice to"
                f" follow: no change that was tried saves {THRESHOLD:.0%} of the time",
                found,
            )
        return self._total.model

    def measured(self, found: Explanation, options: Options, stream: Stream | None) -> Explanation:
        """The explanation with measured times of all advices."""
        base = self._trials.base
        models = {_AS_IS: (self._trials.model, base.point)}
        for each in (*self._advised, self._total, self._free):
            if each is not None:
                models[each.advice.key] = (each.model, each.forecast.point)
        times = measuring.measure(models, options, stream, self._say)

        def timed(advice: Advice | None) -> Advice | None:
            return advice and dataclasses.replace(advice, measured=times[advice.key])

        return dataclasses.replace(
            found,
            measured=times[_AS_IS],
            advices=tuple(filter(None, map(timed, found.advices))),
            total=timed(found.total),
            free=timed(found.free),
        )


def _by_gain(advices: Iterable[Advice]) -> tuple[Advice, ...]:
    return tuple(sorted(advices, key=lambda advice: -advice.gain))
