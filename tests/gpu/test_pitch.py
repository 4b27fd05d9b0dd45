"""Kernels whose pixels lie apart, as those of slices do (onnxbolt/layout/slices.py): the same
bits as without gaps."""

from __future__ import annotations

import pytest

from onnxbolt.families import KernelConfig
from onnxbolt.problems import ConvProblem
from onnxbolt.tune.tasks import instance_of
from tests.gpu.cases import ARCH
from tests.gpu.device import Library
from tests.gpu.planned import planned
from tests.gpu.problems import planned_conv

pytestmark = pytest.mark.gpu
CASES = [
    (problem, config)
    for problem, config in planned(ARCH)
    if isinstance(problem, ConvProblem) and not problem.nchw
]


@pytest.mark.parametrize(
    ("problem", "config"), CASES, ids=[f"{c.family.name}-{p.description}" for p, c in CASES]
)
def test_gaps_between_pixels_change_nothing(
    library: Library, problem: ConvProblem, config: KernelConfig
) -> None:
    instance = instance_of(problem, config)
    kernel, answers = library.kernel(instance), []
    for apart in (False, True):
        made = planned_conv(library, instance, problem, apart)
        kernel.check(made.arguments)
        kernel.launch(made.arguments)
        answers.append(made.output.read().tobytes())
    assert answers[0] == answers[1]
