"""Our own sm_90a kernels on a GPU: every instance on odd shapes, k split over clusters, the same
bits in every run."""

from __future__ import annotations

from typing import Any

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, GemmShape
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import GemmProblem, limit, problems
from tests.gpu.reference import relative_error
from tests.gpu.sm90_cases import splits

pytestmark = pytest.mark.gpu

KERNELS = [
    instance
    for instance in ALL
    if instance.config.family in (named("gemm_sm90"), named("conv_sm90"))
]
SPLITTING = [instance for instance in KERNELS if splits(instance)]
RUNS = 100


def _right(instance: Instance, problem: Any) -> None:
    if problem.expected is not None:
        assert relative_error(problem.output.read(), problem.expected) <= limit(instance), (
            problem.expected.shape
        )


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_every_instance_on_odd_shapes(library: Library, instance: Instance) -> None:
    kernel = library.kernel(instance)
    for problem in problems(library, instance):
        kernel.launch(problem.arguments)
        _right(instance, problem)


@pytest.mark.parametrize("instance", SPLITTING, ids=instance_name)
def test_k_split_over_a_cluster(library: Library, instance: Instance) -> None:
    kernel, launched = library.kernel(instance), 0
    for problem in problems(library, instance):
        for split in splits(instance):
            try:
                kernel.launch(problem.arguments, split_k=split)
            except KernelError:
                # fewer k-blocks than blocks to share them; what is refused has a test of its own
                continue
            _right(instance, problem)
            launched += 1
    assert launched


@pytest.mark.parametrize("split", [1, 2])
def test_a_hundred_runs_give_the_same_bits(library: Library, split: int) -> None:
    instance = next(
        i
        for i in SPLITTING
        if i.config.family is named("gemm_sm90") and i.dtype is DType.F16 and "Bias" in i.chain
    )
    kernel, problem = (
        library.kernel(instance),
        GemmProblem(library, instance, GemmShape(1000, 40, 80)),
    )
    answers = set()
    for run in range(RUNS):
        kernel.launch(problem.arguments, captured=run % 2 == 1, split_k=split)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1
    _right(instance, problem)


def test_launch_choices_that_a_kernel_cannot_make_are_refused(library: Library) -> None:
    instance = next(i for i in KERNELS if i.config.family is named("gemm_sm90") and not splits(i))
    problem = GemmProblem(library, instance, GemmShape(64, 8, 8))
    with pytest.raises(KernelError, match="cannot split k"):
        library.kernel(instance).launch(problem.arguments, split_k=2)
