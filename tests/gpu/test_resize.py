"""NHWC resizing on a GPU against float64: modes, coordinates, roundings, widths of access."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.families import named
from tests.gpu.cases import ALL, TYPES, gate_of_codes
from tests.gpu.device import Epilogue, KernelError, Library, Resize, Tensor
from tests.gpu.reference import LIMITS, drawn, relative_error
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


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("sizes", [(2, 7, 9, 32), (1, 112, 112, 16), (3, 5, 4, 10)], ids=str)
def test_gate_of_codes(library: Library, sizes: tuple[int, int, int, int], dtype: DType) -> None:
    """A gate for each channel of an image, whose one pixel broadcasts."""
    n, h, w, c = sizes
    rng = np.random.default_rng(h * c)
    gate, image = drawn(rng, (n, 1, 1, c), dtype), drawn(rng, sizes, dtype)
    stored, operand = Tensor(library, gate), Tensor(library, image)
    output = Tensor(library, np.zeros_like(image), empty=True)
    numbers = [float(np.float32(x)) for x in (0.00391, 2, 0.04317, 5, 0.02713, 3)]
    epilogue = Epilogue()
    epilogue.tensors[0], epilogue.tensor_pitch[0] = operand.pointer, operand.pitch
    epilogue.params[: len(numbers)] = numbers
    pair = ctypes.c_int * 2
    nearest = (0, 2, 2)  # Sampling("nearest", "asymmetric", "floor", ..)
    arguments = Resize(
        *(*nearest, n, 1, 1, c, 1, 1, 1.0, 1.0),
        *(stored.pointer, output.pointer, stored.pitch, output.pitch, -0.75, 0, h, w),
        *(pair(h, h), pair(w, w), epilogue),
    )
    kernel = library.kernel(next(i for i in KERNELS if i.chain == gate_of_codes(dtype)))
    kernel.check(arguments)
    kernel.launch(arguments)
    values = (gate.astype(float) - numbers[1]) * numbers[0]
    values = values * ((image.astype(float) - numbers[3]) * numbers[2])
    limits = np.iinfo(dtype.numpy)
    expected = np.clip(np.rint(values / numbers[4]) + numbers[5], limits.min, limits.max)
    apart = np.abs(output.read().astype(float) - expected)
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= max(1, 1e-3 * apart.size)


@pytest.mark.parametrize(
    "instance", [i for i in KERNELS if i.chain and not i.dtype.is_code], ids=instance_name
)
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
