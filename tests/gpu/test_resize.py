"""NHWC resizing on a GPU against float64: modes, coordinates, roundings, widths of access."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, TYPES
from tests.gpu.device import KernelError, Library, Resize
from tests.gpu.reference import LIMITS, relative_error
from tests.gpu.resized import BROADCAST, SHAPES, ResizeShape, resize_problem

pytestmark = pytest.mark.gpu

KERNELS = [instance for instance in ALL if instance.config.family is named("resize")]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_resize(library: Library, shape: ResizeShape, dtype: DType) -> None:
    problem = resize_problem(library, _instance(dtype), shape)
    kernel = library.kernel(_instance(dtype))
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        actual = problem.output.read()
        assert problem.expected is not None
        if shape.sampling.mode == "nearest":
            assert np.array_equal(actual.astype(np.float64), problem.expected)
        else:
            assert problem.expected is not None
            assert relative_error(actual, problem.expected) <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s.sampling.mode == "nearest"], ids=str)
def test_codes_of_the_nearest_pixel(library: Library, shape: ResizeShape, dtype: DType) -> None:
    problem = resize_problem(library, _instance(dtype), shape)
    library.kernel(_instance(dtype)).launch(problem.arguments)
    assert problem.expected is not None
    np.testing.assert_array_equal(problem.output.read(), problem.expected)


@pytest.mark.parametrize("instance", [i for i in KERNELS if i.chain], ids=instance_name)
@pytest.mark.parametrize("shape", BROADCAST, ids=str)
def test_epilogue(library: Library, shape: ResizeShape, instance: Instance) -> None:
    problem = resize_problem(library, instance, shape)
    kernel = library.kernel(instance)
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        assert problem.expected is not None
        assert relative_error(problem.output.read(), problem.expected) <= LIMITS[instance.dtype]


def test_refused(library: Library) -> None:
    kernel = library.kernel(_instance(DType.F16))
    with pytest.raises(KernelError, match="no pixel"):
        kernel.check(Resize(0, 0, 0, 1, 0, 4, 8, 2, 8, 1.0, 2.0, y_h=2, y_w=8))
    with pytest.raises(KernelError, match="not positive"):
        kernel.check(Resize(0, 0, 0, 1, 4, 4, 8, 2, 8, 0.0, 2.0, y_h=2, y_w=8))


def _instance(dtype: DType) -> Instance:
    return next(i for i in KERNELS if i.dtype is dtype and not i.chain)
