"""The planner's kernels on odd shapes: right, or refused, within a time limit on the host, with
every choice that their launches have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Status
from onnxbolt.problems import Problem
from onnxbolt.tune.profiler import Profiler
from tests.gpu.cases import ARCH
from tests.gpu.device import Library
from tests.gpu.planned import planned

pytestmark = pytest.mark.gpu
PLANNED = planned(ARCH)


@pytest.fixture(scope="module")
def profiler() -> Iterator[Profiler]:
    with Profiler(ARCH) as running:
        yield running


@pytest.mark.parametrize(
    ("problem", "config"),
    PLANNED,
    ids=[f"{c.family.name}-{p.description}" for p, c in PLANNED],
)
def test_planned_kernels_answer_in_time(
    library: Library, profiler: Profiler, problem: Problem, config: KernelConfig
) -> None:
    first, *others = profiler.measure(problem, [(config, library.path)], samples=1, timeout=15.0)
    assert first.status is Status.OK, first
    failed = [other for other in others if other.status not in (Status.OK, Status.REFUSED)]
    assert not failed, failed
