"""Which configurations a kernel could have: what models, lock files and databases say is held
against it before it is believed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig
from onnxbolt.options import ARCHS, arch_number

# rows or columns of a block's tile; its depth is all of k where layers are chained
_LARGEST_TILE = 1024
_MOST_WARPGROUPS = 8
_ALIGNMENTS = (1, 2, 4, 8, 16)
_MMA_SYNC = (Family.GEMM_2X, Family.CONV_2X)
FOR_CONV = frozenset(
    {
        Family.CONV_2X,
        Family.CONV_SM90,
        Family.HALO_SM90,
        Family.STEM_SM90,
        Family.DEPTHWISE,
        Family.B2B_CONV_SM90,
        Family.B2B_HALO_SM90,
        Family.B2B_STEM_SM90,
        Family.B2B_CONV_2X,
    }
)
FOR_GEMM = frozenset(
    {
        Family.GEMM_2X,
        Family.GEMM_3X,
        Family.GEMM_SM90,
        Family.B2B_GEMM_SM90,
        Family.B2B_GEMM_SMALL,
        Family.B2B_GEMM_2X,
        Family.B2B_GEMM_WIDE_SM90,
        Family.B2B_STORED_SM90,
        Family.GEMM_ROWS_SM90,
    }
)


def config_from(numbers: Any) -> KernelConfig:
    """The configuration of a row. Raises ValueError where it is none that a kernel could have."""
    if not isinstance(numbers, list) or not all(
        type(n) is int and 0 <= n <= UNBOUNDED for n in numbers
    ):
        raise ValueError(
            f"configuration {str(numbers)[:200]}: integers from 0 to {UNBOUNDED} are expected"
        )
    config = KernelConfig.from_row(numbers)
    for what, sound in _checks(config):
        if not sound:
            raise ValueError(f"configuration {numbers}: no kernel has such {what}")
    return config


def _checks(config: KernelConfig) -> Iterator[tuple[str, bool]]:
    """What is looked at, and whether it is sound."""
    yield "an architecture", config.arch in map(arch_number, ARCHS)
    yield "a range of m", config.min_m <= config.max_m
    yield "a tile", min(config.threadblock) > 0 and max(config.threadblock[:2]) <= _LARGEST_TILE
    yield (
        "a warp tile",
        config.family not in _MMA_SYNC
        or all(
            warp > 0 and size % warp == 0
            for size, warp in zip(config.threadblock, config.warp, strict=True)
        ),
    )
    yield "a number of stages", config.stages <= 32
    yield "a cluster", all(1 <= size <= 16 for size in config.cluster)
    yield (
        "an alignment",
        all(width in _ALIGNMENTS for width in (config.align_a, config.align_b, config.align_c)),
    )
    yield "launch", config.swizzle >= 1 and config.split_k >= 1
    yield "warpgroups", config.consumers <= _MOST_WARPGROUPS and config.resident <= 1
