"""The problems of the GPU tests, as far as they can be told without a GPU."""

from __future__ import annotations

from typing import Any, cast

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.integers import ceil_divide
from tests.gpu.cases import ALL
from tests.gpu.device import Conv, Library
from tests.gpu.problems import BUILDERS, deep
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
