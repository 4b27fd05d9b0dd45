"""The problems of the GPU tests, as far as they can be told without a GPU."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.integers import ceil_divide
from onnxbolt.ops.quantized.pattern import classes
from tests.gpu import quantized
from tests.gpu.cases import ALL, ConvShape
from tests.gpu.device import Conv, Library
from tests.gpu.problems import BUILDERS, deep
from tests.gpu.reference import convolve, output_extent
from tests.gpu.test_sm90 import MOST_BLOCKS, SPLITTING


class NoDevice:
    """In the place of a library: memory is an address that nobody uses."""

    def call(self, name: str, *arguments: Any) -> None:
        if name == "device_allocate":
            arguments[0]._obj.value = 1 << 20


def test_every_family_has_problems() -> None:
    assert {instance.config.family for instance in ALL} <= BUILDERS.keys()


@pytest.mark.parametrize("instance", SPLITTING, ids=instance_name)
def test_there_are_k_blocks_for_all_that_split_them(instance: Instance) -> None:
    config = instance.config
    assert isinstance(config, Sm90Config)
    found = deep(cast(Library, NoDevice()), instance, MOST_BLOCKS).arguments
    taps, depth = (found.r * found.s, found.c) if isinstance(found, Conv) else (1, found.k)
    assert depth % config.k
    assert depth % config.access_in == 0
    assert taps * ceil_divide(depth, config.k) >= MOST_BLOCKS


def _class(firsts: list[int], output: int) -> int:
    """The class of an output: the last that begins at or in front of it."""
    return sum(first <= output for first in firsts) - 1


@pytest.mark.parametrize("shape", quantized.CONVS, ids=str)
def test_offsets_stand_for_the_zero_point_at_each_pixel(shape: ConvShape) -> None:
    rng, zero = np.random.default_rng(0), 131
    x = rng.integers(0, 256, (shape.n, shape.h, shape.w, 8))
    weight = rng.integers(-128, 128, (3, shape.r, shape.s, 8))
    exact, sums = convolve(x - zero, weight, shape), convolve(x, weight, shape)
    table = quantized.border_table(weight, shape, zero)
    axes = [
        classes(size, taps, stride, dilation, (shape.pads[i], shape.pads[2 + i]))
        for i, (size, taps, stride, dilation) in enumerate(
            zip(
                (shape.h, shape.w),
                (shape.r, shape.s),
                shape.strides,
                shape.dilations,
                strict=True,
            )
        )
    ]
    for p, q in np.ndindex(output_extent(shape)):
        row = _class(axes[0], p) * len(axes[1]) + _class(axes[1], q) if any(shape.pads) else 0
        assert np.array_equal(sums[:, p, q] + table[row], exact[:, p, q])
