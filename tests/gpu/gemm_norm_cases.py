"""Kernel instances of GEMMs that normalize rows, for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_norm_sm90 import GemmNormSm90Config
from onnxbolt.problems import GemmNormProblem

CHAINS: tuple[tuple[str, ...], ...] = (
    ("Bias", "Add", "Store", "LayerNorm", "Scale", "Bias"),
    ("Bias", "Add", "LayerNorm", "Scale", "Bias"),
    ("RmsNorm", "Scale"),
    ("Bias", "GeluErf", "Add", "Add", "LayerNorm", "Scale", "Bias"),
    ("Add", "Store", "RmsNorm", "Scale"),
    ("Bias", "LayerNorm"),
    ("Bias", "Store", "LayerNorm", "Scale", "Bias"),
)
_C, _P = Schedule.COOPERATIVE, Schedule.PINGPONG
# blocks of a cluster, columns of a tile, schedule, consumer warpgroups; each number of blocks is
# there, and each number of warpgroups
_TILES = (
    (1, 96, _C, 1),
    (1, 256, _C, 2),
    (2, 128, _P, 2),
    (3, 192, _P, 2),
    (3, 128, _C, 3),
    (4, 192, _C, 2),
    (4, 256, _C, 2),
    (5, 64, _P, 3),
    (6, 128, _C, 1),
    (7, 96, _C, 2),
    (8, 128, _C, 3),
    (8, 256, _C, 2),
    (4, 80, _C, 2),
)


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each tile with three chains in turn in fp16, with one in other types; none where the
    architecture or its shared memory has no room for it."""
    chains = itertools.cycle(CHAINS)
    for dtype, tile in itertools.product(types, _TILES):
        for chain in itertools.islice(chains, 3 if dtype is DType.F16 else 1):
            config = _config(arch, dtype, chain, *tile)
            if config is not None:
                yield Instance(config, dtype, dtype, chain)


def _config(
    arch: int,
    dtype: DType,
    chain: tuple[str, ...],
    blocks: int,
    columns: int,
    schedule: Schedule,
    consumers: int,
) -> GemmNormSm90Config | None:
    family = named("gemm_norm_sm90")
    problem = GemmNormProblem(1, blocks * columns, 512, dtype, dtype, chain)
    found = family.candidates(problem, get(arch)) if family.runs_on(get(arch)) else ()
    wanted = ((1, blocks), schedule, consumers)
    return next((c for c in found if (c.cluster, c.schedule, c.consumers) == wanted), None)
