"""Tasks: each problem once, its candidates as the cost model ranks them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, named
from onnxbolt.plan.cost import candidates, fused_us, predict
from onnxbolt.problems import AttentionProblem
from onnxbolt.tune.tasks import instance_of, tasks_of
from tests.tune.fakes import MODEL, gemm

H200 = get(90)


def nothing(*_: object) -> tuple[KernelConfig, ...]:
    return ()


def test_a_problem_is_one_task_however_often_the_model_has_it() -> None:
    tasks = tasks_of(MODEL, H200)
    assert sum(task.occurrences for task in tasks) == len(MODEL)
    assert len({task.problem for task in tasks}) == len(tasks) == 5
    shares = [task.occurrences * task.candidates[0].us for task in tasks]
    assert shares == sorted(shares, reverse=True)


def test_candidates_are_the_first_by_prediction() -> None:
    (task,) = tasks_of([gemm()], H200, 5, nothing)
    assert (task.candidates[0].config, task.candidates[0].us) == predict(gemm(), 90)
    assert [c.us for c in task.candidates] == sorted(c.us for c in task.candidates)
    assert len(task.candidates) == 5
    assert task.floor_us < task.candidates[0].us


def test_seeds_come_behind_the_first_ones_and_only_where_they_are_feasible() -> None:
    first = tasks_of([gemm()], H200, 5, nothing)[0].candidates
    last = max((fused_us(gemm(), config, H200), config) for config in candidates(gemm(), H200))[1]
    other: dict[str, Any] = {"tile": (512, 512, 64)}
    (task,) = tasks_of([gemm()], H200, 5, lambda *_: (last, replace(last, **other)))
    assert [c.config for c in task.candidates] == [c.config for c in first] + [last]


def test_every_family_is_tried_and_those_with_a_successor_a_few_times() -> None:
    (task,) = tasks_of([gemm()], H200, 24, nothing)
    count = Counter(c.config.family for c in task.candidates)
    assert (
        count.keys() == {config.family for config in candidates(gemm(), H200)} > {named("gemm_2x")}
    )
    assert count[named("gemm_2x")] == 3
    assert len(task.candidates) <= 24
    (older,) = tasks_of([gemm()], get(80), 24, nothing)
    assert len(older.candidates) == min(24, len(candidates(gemm(), get(80))))
    (one,) = tasks_of([gemm()], H200, 1, nothing)
    assert len(one.candidates) == 1


def test_attention_is_a_task_unless_the_profiler_cannot_compute_it() -> None:
    vit = AttentionProblem(32, 12, 12, 197, 197, 64, 64, DType.F16, DType.F16)
    (task,) = tasks_of([vit, vit], H200, 24)
    families = {candidate.config.family.name for candidate in task.candidates}
    assert families == {"attention", "attention_sm90"}
    assert task.occurrences == 2
    assert not tasks_of([replace(vit, windows=(56, 56, 7, 7, 0, 0))], H200, 24)


def test_problems_without_kernels_are_no_tasks() -> None:
    # too wide for one kernel
    assert tasks_of([replace(gemm(chain=("Bias", "Gemm")), inner=(768,))], H200) == []


def test_problems_of_one_chain_share_kernels() -> None:
    config = named("gemm_sm90").candidates(gemm(), H200)[0]
    assert instance_of(gemm(), config) == instance_of(
        gemm(4096, 4096, 4096), replace(config, swizzle=1, max_m=64)
    )
    assert instance_of(gemm(), config) != instance_of(gemm(chain=("Bias", "Relu")), config)


def test_several_layers_are_a_task_of_their_own_kind() -> None:
    several = replace(gemm(16384, 16, 256, chain=("Bias", "Relu", "Gemm", "Bias")), inner=(64,))
    tasks = tasks_of([several, *several.layers], H200, 24, nothing)
    assert Counter(task.kind for task in tasks) == {"gemm chain": 1, "gemm": 2}
    (chain,) = (task for task in tasks if task.kind == "gemm chain")
    assert {c.config.family for c in chain.candidates} == {named("b2b_gemm_sm90")}
