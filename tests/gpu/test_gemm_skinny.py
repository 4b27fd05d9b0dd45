"""GEMMs of few rows on a GPU against float64: every instance, k divided within blocks and among
those of a cluster, the same bits in every run."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu.cases import ALL, GemmShape
from tests.gpu.device import Library
from tests.gpu.gemm_skinny_cases import SPLITS
from tests.gpu.problems import GemmProblem, limit, problems
from tests.gpu.reference import relative_error

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("gemm_skinny")]


def _splits(instance: Instance) -> tuple[int, ...]:
    return (1, *SPLITS) if instance.config.arch >= 90 else (1,)


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_division_of_k(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        for split in _splits(instance):
            kernel.launch(problem.arguments, captured=split % 2 == 0, split_k=split)
            error = relative_error(problem.output.read(), problem.expected)
            assert error <= limit(instance), (problem.expected.shape, split)


@pytest.mark.parametrize("instance", KERNELS[:4], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    problem = GemmProblem(library, instance, GemmShape(13, 40, 300))
    for split in _splits(instance):
        answers = set()
        for run in range(100):
            kernel.launch(problem.arguments, captured=run % 2 == 1, split_k=split)
            answers.add(problem.output.read().tobytes())
        assert len(answers) == 1
