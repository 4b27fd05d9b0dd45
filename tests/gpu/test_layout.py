"""Changes of layout on a GPU: exact values in both directions, tails of tiles, padding,
conversions, unaligned tensors."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families import named
from tests.gpu.cases import ALL
from tests.gpu.device import KernelError, Layout, Library, Tensor
from tests.gpu.reference import drawn

pytestmark = pytest.mark.gpu

# images, channels, channels as stored, pixels
SHAPES = (
    (2, 3, 4, 224 * 224),
    (1, 1, 8, 1025),
    (3, 3, 3, 49),
    (2, 5, 8, 31 * 33),
    (2, 64, 64, 56 * 56),
    (1, 61, 64, 49),
    (3, 65, 72, 100),
    (2, 130, 130, 63),
    (5, 1000, 1000, 1),
    (1, 12, 12, 4096),
    (70000, 3, 4, 2),
)
KERNELS = [instance for instance in ALL if instance.config.family is named("layout")]


Shape = tuple[int, int, int, int]


def _call(
    library: Library,
    instance: Instance,
    x: np.ndarray,
    expected: np.ndarray,
    shape: Shape,
    to_last: bool,
) -> None:
    source, output = Tensor(library, x), Tensor(library, np.empty_like(expected), empty=True)
    arguments = Layout(to_last, *shape, source.pointer, output.pointer)
    kernel = library.kernel(instance)
    kernel.check(arguments)
    kernel.launch(arguments)
    np.testing.assert_array_equal(output.read().astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("instance", KERNELS, ids=instance_name)
def test_conversions_to_nhwc_and_back_keep_values(
    library: Library, instance: Instance, shape: Shape
) -> None:
    n, channels, stored, pixels = shape
    given = drawn(np.random.default_rng(pixels), (n, channels, pixels), instance.dtype)
    first = given.astype(np.float32)
    last = np.pad(first.transpose(0, 2, 1), ((0, 0), (0, 0), (0, stored - channels)))
    dropped = np.pad(
        first.transpose(0, 2, 1), ((0, 0), (0, 0), (0, stored - channels)), constant_values=7
    )
    read, made = instance.dtype.numpy, instance.out.numpy
    _call(
        library, instance, first.astype(read), last.astype(read).astype(made), shape, to_last=True
    )
    _call(
        library,
        instance,
        dropped.astype(read),
        first.astype(read).astype(made),
        shape,
        to_last=False,
    )


@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned_tensors(library: Library, offset: int) -> None:
    """Views that begin anywhere: accesses become narrower, not wrong."""
    (instance,) = (i for i in KERNELS if i.dtype.bytes == i.out.bytes == 4)
    values = np.random.default_rng(0).normal(0, 1, (1, 16, 64)).astype(np.float32)
    source = Tensor(
        library, np.concatenate([np.zeros(offset, np.float32), values.reshape(-1)])[None]
    )
    output = Tensor(library, np.zeros((1, 64, 16), np.float32), empty=True)
    library.kernel(instance).launch(
        Layout(1, 1, 16, 16, 64, source.pointer + 4 * offset, output.pointer)
    )
    np.testing.assert_array_equal(output.read(), values.transpose(0, 2, 1))


def test_empty_and_impossible(library: Library) -> None:
    kernel = library.kernel(KERNELS[0])
    kernel.launch(Layout(1, 0, 3, 4, 100, None, None))
    with pytest.raises(KernelError, match="fewer channels"):
        kernel.check(Layout(1, 1, 4, 3, 100, None, None))
