"""Images sampled at given positions on a GPU against float64: modes, borders, heads, levels."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.reference import LIMITS, relative_error
from tests.gpu.sampled import SHAPES, Samples, sample_problem

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("grid_sample")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_grid_sample(library: Library, instance: Instance, shape: Samples) -> None:
    problem = sample_problem(library, instance, shape)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        assert problem.expected is not None
        error = relative_error(problem.output.read(), problem.expected)
        assert error <= LIMITS[instance.dtype]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("mode", 2, "none that the kernel knows"),
        ("levels", 9, "too many levels"),
        ("points", 0, "no points"),
        ("rows", 62, "more pixels than x has rows"),
    ],
)
def test_refused(library: Library, field: str, value: int, text: str) -> None:
    problem = sample_problem(library, KERNELS[0], SHAPES[0])
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(KERNELS[0]).check(problem.arguments)
