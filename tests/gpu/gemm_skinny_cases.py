"""Kernel instances of GEMMs with few rows for the GPU tests, and shapes for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families.gemm_skinny import GemmSkinnyConfig

# m; n and k in units of the kernel's alignment; units between rows
SHAPES = ((1, 125, 96, 0), (16, 40, 512, 1), (9, 11, 300, 0), (8, 16, 8192, 0))
SPLITS = (2, 3, 4, 8)  # blocks of a cluster
# rows, columns, warps, steps
_TILES = (
    (8, 8, 8, 2),
    (16, 16, 4, 4),
    (8, 32, 16, 2),
    (16, 32, 8, 2),
    (8, 8, 4, 8),
    (16, 8, 16, 2),
    (8, 16, 8, 4),
)
_GATED: tuple[tuple[str, ...], ...] = (
    ("Silu", "Gate"),
    ("Bias", "GeluErf", "GateBias", "Add"),
    ("Gate",),
)


def instances(
    arch: int,
    types: Sequence[DType],
    forms: Sequence[tuple[DType, DType, tuple[str, ...]]],
) -> Iterator[Instance]:
    """One for each form of element, output and chain; small alignments; gates. Tiles in turn."""
    tiles = itertools.cycle(_TILES)
    for dtype, out, chain in forms:
        yield _instance(arch, dtype, out, chain, next(tiles), dtype.alignment, dtype.alignment)
    for dtype, access_k, access_n in itertools.product(types, (1, 2, 4), (1, 4)):
        yield _instance(
            arch, dtype, dtype, ("Bias", "Relu", "Add"), next(tiles), access_k, access_n
        )
    for dtype, chain in itertools.product(types, _GATED):
        tile = next(tile for tile in tiles if tile[1] > 8)
        yield _instance(arch, dtype, dtype, chain, tile, dtype.alignment, dtype.alignment)


def _instance(
    arch: int,
    dtype: DType,
    out: DType,
    chain: tuple[str, ...],
    tile: tuple[int, int, int, int],
    access_k: int,
    access_n: int,
) -> Instance:
    rows, columns, warps, steps = tile
    config = GemmSkinnyConfig(
        arch=arch,
        rows=rows,
        columns=columns,
        instruction=get(arch).mma[dtype],
        steps=steps,
        warps=warps,
        access_k=access_k,
        access_n=access_n,
    )
    return Instance(config, dtype, out, chain)
