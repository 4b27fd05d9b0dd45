"""Our own sm_90a kernels on a GPU: every instance on odd shapes, k split over clusters, the same
bits in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, GemmShape
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import GemmProblem, deep, limit, problems
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
MOST_BLOCKS = 8  # that may share a tile
TOO_FEW_BLOCKS = "split_k exceeds the number of k-blocks"


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
    """Problems without an expected result, whose answers test_planned.py compares, give the answer
    of one block for each tile."""
    kernel, launched = library.kernel(instance), set()
    for problem in (*problems(library, instance), deep(library, instance, blocks=MOST_BLOCKS)):
        kernel.launch(problem.arguments)
        expected = problem.expected
        if expected is None:
            expected = problem.output.read().astype(np.float64)
        for split in splits(instance):
            problem.output.empty()
            try:
                kernel.launch(problem.arguments, split_k=split)
            except KernelError as error:
                if TOO_FEW_BLOCKS in str(error):
                    continue
                raise
            found = relative_error(problem.output.read(), expected)
            assert found <= limit(instance), (split, problem.output.shape)
            launched.add(split)
    assert launched == set(splits(instance))


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
