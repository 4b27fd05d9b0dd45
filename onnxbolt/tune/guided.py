"""Tuning by an extension's strategy: it proposes configurations, the scheduler orders them."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence

from onnxbolt.archs import Arch
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig, config_from
from onnxbolt.measurements.strategy import STRATEGIES, Ranked, Strategy, Task
from onnxbolt.plan.cost import fused_us
from onnxbolt.spelling import option
from onnxbolt.tune.scheduler import Outlook, Scheduler, Trial
from onnxbolt.tune.soundness import check_choice


def strategy_named(name: str) -> Strategy | None:
    """The strategy that `Options.strategy` names; None for the tuner's own. Raises InputError if no
    extension has it."""
    if not name:
        return None
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES) or "none"
        raise InputError(
            f"{option('strategy', name)}: no extension that is installed has this strategy (they"
            f" have: {known}); install the package that has it, or leave out the option"
        )
    return STRATEGIES[name]


_MOST = 10_000  # proposals of one call that are looked at: they may have no end


class Guided(Scheduler):
    """Hands out the configurations that a strategy proposes, at most `trials` for each task."""

    def __init__(self, tasks: Sequence[Task], strategy: Strategy, arch: Arch, trials: int) -> None:
        super().__init__(tasks)
        self._strategy, self._arch, self._trials = strategy, arch, trials
        self._open = set(range(len(tasks)))  # tasks for which more may be proposed
        self._proposed = [0] * len(tasks)
        for state in self._states:
            state.left.clear()

    def give_up(self, task: int) -> None:
        super().give_up(task)
        self._open.discard(task)

    def next(
        self, kernels: int, compiled: Container[Instance] = ()
    ) -> list[tuple[Instance, list[Trial]]]:
        """As the scheduler's own, after asking the strategy about tasks that have nothing left."""
        for number in sorted(self._open):
            state = self._states[number]
            if not state.left and not state.under_way:
                self._ask(number)
        return super().next(kernels, compiled)

    def _ask(self, number: int) -> None:
        """Accept the next proposals for a task."""
        state, most = self._states[number], self._trials - self._proposed[number]
        new = dict.fromkeys(itertools.islice(self._new(number), most))
        for config in new:
            us = fused_us(state.task.problem, config, self._arch)
            state.left[config] = Ranked(config, us)
            state.predicted[config] = us
        self._proposed[number] += len(new)
        if not new:
            self._open.discard(number)

    def _new(self, number: int) -> Iterator[KernelConfig]:
        """New proposals of the strategy. Raises InputError for a configuration that no kernel of
        the task has, and for any exception of the strategy."""
        state, strategy = self._states[number], self._strategy
        try:
            proposed = strategy.propose(state.task, tuple(state.measured.values()))
            for config in itertools.islice(proposed, _MOST):
                if not isinstance(config, KernelConfig):
                    raise TypeError(f"{config!r} is no configuration of a kernel")
                found = config_from(config.row())  # the family's own, whatever was proposed
                check_choice(state.task.problem, self._arch.number, found)
                if found not in state.measured:
                    yield found
        except Exception as error:  # code of others, which can raise anything
            raise InputError(
                f"the strategy {strategy.name} does not work for {state.task.name}:"
                f" {type(error).__name__}: {error}. Mend it, or choose another by"
                f" {option('strategy')}"
            ) from error

    def _paying(
        self, number: int, candidates: Mapping[KernelConfig, Ranked]
    ) -> list[tuple[KernelConfig, Outlook]]:
        """All candidates, since the strategy decides what pays."""
        return [
            (config, self._calibration.outlook(number, candidate))
            for config, candidate in candidates.items()
        ]
