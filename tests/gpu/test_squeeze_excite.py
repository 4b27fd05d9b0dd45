"""Squeeze-and-excitation on a GPU against float64: divisions of the work, accesses, pitches,
what exceeds shared memory."""

from __future__ import annotations

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Library
from tests.gpu.problems import squeeze_excite_problem
from tests.gpu.reference import LIMITS, relative_error

pytestmark = pytest.mark.gpu

# images, pixels, channels, squeezed channels, elements between pixels
SHAPES = (
    (1, 1, 8, 8, 0),
    (32, 49, 960, 240, 0),
    (33, 49, 672, 168, 0),
    (3, 784, 72, 24, 0),
    (5, 196, 480, 120, 8),
    (1, 3136, 96, 8, 16),
    (1, 12544, 96, 8, 0),
    (4, 25, 13, 5, 0),
    (3, 9, 6, 8, 2),
    (130, 49, 120, 32, 0),
    (1, 7, 2048, 128, 0),
    (2, 30, 4100, 8, 0),
    (40, 4, 7, 3, 1),
)
KERNELS = [instance for instance in ALL if instance.config.family is named("squeeze_excite")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_squeeze_excite(
    library: Library, instance: Instance, shape: tuple[int, int, int, int, int]
) -> None:
    problem = squeeze_excite_problem(library, instance, shape)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        assert problem.expected is not None
        assert relative_error(problem.output.read(), problem.expected) <= LIMITS[instance.dtype]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("squeezed", 9, "padded to accesses"),
        ("channels", 2**30, "too large"),
        ("channels", 200000, "shared memory"),
    ],
)
def test_refusals(library: Library, field: str, value: int, text: str) -> None:
    instance = next(i for i in KERNELS if i.dtype is DType.F16)
    problem = squeeze_excite_problem(library, instance, SHAPES[0])
    setattr(problem.arguments, field, value)
    with pytest.raises(KernelError, match=text):
        library.kernel(instance).check(problem.arguments)
