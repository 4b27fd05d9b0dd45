"""Kernel instances of normalizations of groups for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families.group_norm import GroupNormConfig

CHAINS: tuple[tuple[str, ...], ...] = (
    ("Silu",),
    (),
    ("LeakyRelu",),
    ("Silu", "Add"),
    ("Scale", "Bias", "GeluErf", "Mul", "Add"),
)
# threads of a block, elements of an access (0: of 16 bytes)
_SHAPES = ((256, 0), (512, 0), (96, 2), (128, 1))


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each shape as one kernel and as two, with two chains in turn, and results in fp32."""
    chains = itertools.cycle(CHAINS)
    for dtype, (threads, width), resident in itertools.product(types, _SHAPES, (True, False)):
        config = GroupNormConfig(
            arch=arch, threads=threads, access=width or dtype.alignment, resident=resident
        )
        for chain in itertools.islice(chains, 2):
            yield Instance(config, dtype, dtype, chain)
        if not width:
            yield Instance(config, dtype, DType.F32, ("Silu",))
