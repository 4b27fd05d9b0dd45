"""Normalizations of groups on a GPU against float64: divisions among blocks and clusters, one
kernel and two, parts that shared memory does not hold, vectors of each image, pitches."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu import group_norms
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.reference import LIMITS, relative_error

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("group_norm")]


@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_group_norm(library: Library, instance: Instance) -> None:
    kernel, limit = library.kernel(instance), LIMITS[instance.dtype]
    for index, problem in enumerate(group_norms.problems(library, instance)):
        kernel.check(problem.arguments)
        for division, (part, blocks) in enumerate(group_norms.DIVISIONS):
            captured = (index + division) % 2 == 0
            kernel.launch(problem.arguments, captured, split_k=blocks, columns=part)
            assert problem.expected is not None
            error = relative_error(problem.output.read(), problem.expected)
            assert error <= limit, (group_norms.SHAPES[index], part, blocks)


@pytest.mark.parametrize("instance", KERNELS[:6], ids=instance_name)
def test_results_are_the_same_bits_on_every_run(library: Library, instance: Instance) -> None:
    kernel, problem = library.kernel(instance), group_norms.problems(library, instance)[1]
    answers = set()
    for _ in range(100):
        kernel.launch(problem.arguments, split_k=8, columns=64)
        answers.add(problem.output.read().tobytes())
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("groups", 7, "do not divide the channels"),
        ("x_pitch", 1281, "not multiples of align_a"),
        ("gamma", None, "gamma or beta is missing"),
        ("x", 2, "not aligned"),
        ("before", 2, "not aligned"),
    ],
)
def test_refusals(library: Library, field: str, value: int | None, text: str) -> None:
    problem = group_norms.problem(library, KERNELS[0], group_norms.SHAPES[0])
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(KERNELS[0]).check(problem.arguments)


@pytest.mark.parametrize("field", ["n", "pixels"])
def test_no_values_are_no_launch(library: Library, field: str) -> None:
    problem = group_norms.problem(library, KERNELS[0], group_norms.SHAPES[0])
    setattr(problem.arguments, field, 0)
    library.kernel(KERNELS[0]).launch(problem.arguments)
    assert np.all(problem.output.read().view(np.uint8) == 0xFF)
