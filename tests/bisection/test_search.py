"""The search by itself, on trials that only count steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from onnxbolt.bisection.search import FUSION, STAGE, Found, Outcome, Step, Verdict, search

GOOD, BAD, SKIP = Outcome(Verdict.GOOD), Outcome(Verdict.BAD, "x", True), Outcome(Verdict.SKIP)


@dataclass
class Numbers:
    """Steps 0, 1, ..; `judge` gets those that are taken."""

    count: int
    judge: Callable[[set[int]], Outcome]
    kind: str = FUSION
    left: list[set[int]] = field(default_factory=list)

    def steps(self, left: Sequence[Step]) -> Sequence[Step]:
        steps = (Step(self.kind, str(i)) for i in range(self.count))
        return [step for step in steps if step not in left]

    def run(self, taken: Sequence[Step], left: Sequence[Step]) -> Outcome:
        assert not set(taken) & set(left)
        self.left.append({int(step.name) for step in left})
        return self.judge({int(step.name) for step in taken})


def bad_if(condition: Callable[[set[int]], bool]) -> Callable[[set[int]], Outcome]:
    return lambda taken: BAD if condition(taken) else GOOD


def numbers(found: Found) -> list[int]:
    return [int(step.name) for culprit in found.culprits for step in culprit.steps]


@pytest.mark.parametrize("count", [*range(1, 20), 31, 32, 33, 64, 65])
def test_one_culprit_takes_few_runs(count: int) -> None:
    for culprit in range(count):
        found = search(Numbers(count, bad_if(lambda taken, c=culprit: c in taken)))  # type: ignore[misc]
        assert numbers(found) == [culprit]
        assert found.rest == GOOD
        assert found.runs <= math.ceil(math.log2(count)) + 2


def test_nothing_fails() -> None:
    found = search(Numbers(9, lambda _: GOOD))
    assert (found.culprits, found.runs, found.rest, found.original) == ((), 1, GOOD, None)


def test_the_original_fails() -> None:
    found = search(Numbers(9, lambda _: BAD))
    assert found.culprits == ()
    assert found.original == BAD
    assert search(Numbers(0, lambda _: BAD)).original == BAD


def test_the_first_step_alone_fails() -> None:
    found = search(Numbers(9, bad_if(lambda taken: 0 in taken)))
    assert (numbers(found), found.original) == ([0], None)


@pytest.mark.parametrize("seed", range(20))
def test_several_culprits(seed: int) -> None:
    draw = random.Random(seed)
    wanted = set(draw.sample(range(40), draw.choice([2, 3])))
    found = search(Numbers(40, bad_if(lambda taken: bool(taken & wanted))))
    assert set(numbers(found)) == wanted
    assert [each.alone for each in found.culprits] == [False] * len(wanted)
    assert not found.accumulates


def test_steps_that_fail_only_together() -> None:
    """Leaving out one of them is enough."""
    found = search(Numbers(30, bad_if(lambda taken: {4, 17} <= taken)))
    assert numbers(found) == [17]
    assert found.rest == GOOD


def test_no_step_is_left_out_in_vain() -> None:
    """Step 3 fails with step 9 only, which fails with step 20, too: without 9 all is well."""
    judge = bad_if(lambda taken: {3, 9} <= taken or {9, 20} <= taken)
    assert numbers(search(Numbers(30, judge))) == [9]
    # 2 and 5 fail together; 5 and 8, too; found are 5 first, hence no other
    both = bad_if(lambda taken: {2, 5} <= taken or 8 in taken)
    assert numbers(search(Numbers(30, both))) == [5, 8]


@pytest.mark.parametrize("limit", [14, 18])
def test_an_error_that_accumulates(limit: int) -> None:
    summed = Outcome(Verdict.BAD, "0.2 is above the limit")  # seen in the outputs alone
    found = search(Numbers(20, lambda taken: summed if len(taken) > limit else GOOD))
    assert found.accumulates
    assert len(found.culprits) == 20 - limit
    assert found.rest == GOOD


def test_a_single_step_that_fails_in_the_outputs_alone_is_tried_by_itself() -> None:
    seen = Outcome(Verdict.BAD, "0.2 is above the limit")
    found = search(Numbers(32, lambda taken: seen if 21 in taken else GOOD))
    assert numbers(found) == [21]
    assert found.culprits[0].alone is False
    assert found.runs <= 5 + 2 + 1


def test_it_gives_up_where_leaving_out_does_not_help() -> None:
    found = search(Numbers(40, bad_if(lambda taken: len(taken) > 5)))
    assert found.rest.verdict is Verdict.BAD
    assert len(found.culprits) == 8


def test_models_that_cannot_be_judged_are_passed_over() -> None:
    def judge(taken: set[int]) -> Outcome:
        last = max(taken, default=0)
        return SKIP if len(taken) == last + 1 in (9, 10) else BAD if 3 in taken else GOOD

    assert numbers(search(Numbers(20, judge))) == [3]


def test_steps_that_cannot_be_told_apart() -> None:
    def judge(taken: set[int]) -> Outcome:
        prefix = max(taken, default=-1)
        whole = len(taken) == prefix + 1
        return SKIP if whole and 6 <= prefix <= 8 else BAD if 7 in taken else GOOD

    found = search(Numbers(20, judge))
    assert numbers(found) == [6, 7, 8, 9]
    assert len(found.culprits) == 1


def test_a_check_that_skips_everything() -> None:
    found = search(Numbers(20, lambda _: SKIP))
    assert (found.culprits, found.rest, found.runs) == ((), SKIP, 1)


def test_stages_are_not_tried_alone() -> None:
    """Others may have to run before them."""
    found = search(Numbers(12, bad_if(lambda taken: bool(taken & {2, 7})), STAGE))
    assert numbers(found) == [2, 7]
    assert [each.alone for each in found.culprits] == [None, None]
