"""Channels moved to pixels and back on a GPU: both directions and orders, epilogues, accesses."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.reference import LIMITS, relative_error
from tests.gpu.shuffled import SHAPES, Shuffle, shuffle_problem

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("pixel_shuffle")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_pixel_shuffle(library: Library, instance: Instance, shape: Shuffle) -> None:
    problem = shuffle_problem(library, instance, shape)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        actual = problem.output.read().astype(np.float64)
        assert problem.expected is not None
        if not instance.chain:
            assert np.array_equal(actual, problem.expected)
        assert relative_error(actual, problem.expected) <= LIMITS[instance.dtype]


def test_refused(library: Library) -> None:
    problem = shuffle_problem(library, KERNELS[0], SHAPES[0])
    problem.arguments.block = 0
    with pytest.raises(KernelError, match="no pixels"):
        library.kernel(KERNELS[0]).check(problem.arguments)
