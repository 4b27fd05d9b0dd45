"""Kernel instances of normalizations of rows for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import CODES, DType
from onnxbolt.epilogues import QUANTIZE, ROTATE, STORE, STORE_VALUES
from onnxbolt.families.norm import Caching, NormConfig
from onnxbolt.problems import MAX_TABLES

CHAINS: tuple[tuple[str, ...], ...] = (
    ("Add", STORE, "Scale", "Bias"),
    ("Scale", "Bias"),
    ("Add", "Scale"),
    (),
    ("Add", STORE),
    ("Add", STORE, "Scale"),
)
OF_TOKENS = tuple(chain for chain in CHAINS if "Add" in chain)
OF_EMBEDDINGS: tuple[tuple[str, ...], ...] = (
    ("Add", "Scale", "Bias"),
    (STORE, "Scale"),
    ("Add", STORE, "Scale", "Bias"),
    ("Scale", "Bias"),
)
OF_HEADS: tuple[tuple[str, ...], ...] = (
    ("Scale", ROTATE),
    ("Scale",),
    ("Scale", "Bias", ROTATE),
    (ROTATE,),
    ("Scale", "Bias"),
    (),
)
MODULATED: tuple[tuple[str, ...], ...] = (
    ("Scale",),
    ("Add", STORE, "Scale", "Bias"),
    ("Scale", "Bias"),
    ("Add", "Scale"),
)
GATED = tuple(chain for chain in MODULATED if "Add" in chain)
TABLES = range(1, MAX_TABLES + 1)
_U, _P, _E = Caching.USUAL, Caching.PAST_L1, Caching.EVICTED_FIRST
# rows of a block, lanes, vectors, batch, elements of an access (0: of 16 bytes), resident, caching
_CONFIGS = (
    (128, 1, 2, 2, 0, False, _U),
    (32, 4, 3, 1, 0, False, _P),
    (8, 16, 1, 1, 0, True, _U),
    (4, 32, 3, 1, 0, False, _U),
    (8, 32, 3, 2, 0, False, _P),
    (4, 32, 3, 1, 0, True, _E),
    (8, 32, 5, 1, 2, False, _E),
    (1, 64, 13, 1, 1, False, _U),
    (1, 128, 1, 2, 0, True, _P),
    (1, 256, 2, 2, 0, True, _P),
    (1, 1024, 2, 1, 0, False, _U),
)
# the same of heads, without the last two
_HEAD_CONFIGS = (
    (16, 8, 1, 2, 0),
    (16, 8, 2, 1, 0),
    (8, 16, 1, 1, 0),
    (8, 32, 1, 1, 0),
    (128, 1, 2, 1, 0),
    (8, 32, 5, 1, 2),
    (1, 64, 13, 1, 1),
    (1, 512, 2, 1, 0),
)


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each configuration with three chains in turn, with one for tokens, and with one for
    embeddings, of one to three tables in turn, with one that ends with codes, and with one that
    stores values beside these. Those of heads have configurations of their own; modulated ones
    come last."""
    chains, of_tokens = itertools.cycle(CHAINS), itertools.cycle(OF_TOKENS)
    embeddings = itertools.cycle(itertools.product(OF_EMBEDDINGS, TABLES))
    codes, of_codes = itertools.cycle(CODES), itertools.cycle(CHAINS)
    for dtype, (rows, lanes, vectors, batch, width, resident, caching) in itertools.product(
        types, _CONFIGS
    ):
        config = NormConfig(
            arch=arch,
            rows=rows,
            lanes=lanes,
            vectors=vectors,
            batch=batch,
            access=width or dtype.alignment,
            resident=resident,
            caching=caching,
        )
        for chain in itertools.islice(chains, 3):
            yield Instance(config, dtype, dtype, chain)
        yield Instance(replace(config, tokens=True), dtype, dtype, next(of_tokens))
        chain, tables = next(embeddings)
        yield Instance(replace(config, tokens=True, tables=tables), dtype, dtype, chain)
        code, before = next(codes), next(of_codes)
        yield Instance(config, dtype, code, (*before, QUANTIZE[code]))
        before = tuple(step for step in before if step != STORE)
        code = next(codes)
        yield Instance(config, dtype, code, (*before, STORE_VALUES[dtype], QUANTIZE[code]))
    yield from _of_heads(arch, types)
    yield from _modulated(arch, types)


def _modulated(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each configuration with a chain in turn, and with one for a gate."""
    chains, gated = itertools.cycle(MODULATED), itertools.cycle(GATED)
    for dtype, (rows, lanes, vectors, batch, width, resident, caching) in itertools.product(
        types, _CONFIGS
    ):
        config = NormConfig(
            arch=arch,
            rows=rows,
            lanes=lanes,
            vectors=vectors,
            batch=batch,
            access=width or dtype.alignment,
            resident=resident,
            caching=caching,
            modulation=1,
        )
        yield Instance(config, dtype, dtype, next(chains))
        yield Instance(replace(config, modulation=2), dtype, dtype, next(gated))


def _of_heads(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each configuration with two chains in turn."""
    chains = itertools.cycle(OF_HEADS)
    for dtype, (rows, lanes, vectors, batch, width) in itertools.product(types, _HEAD_CONFIGS):
        access = width or dtype.alignment
        config = NormConfig(
            arch=arch,
            rows=rows,
            lanes=lanes,
            vectors=vectors,
            batch=batch,
            access=access,
            heads=True,
        )
        for chain in itertools.islice(chains, 2):
            whole = access > 1 or ROTATE not in chain  # pairs of columns are in one access
            yield Instance(config, dtype, dtype, chain if whole else ("Scale", "Bias"))
