"""Instances of GEMMs whose rows TMA cannot read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import GemmProblem

# k and columns
_SIZES = ((429, 256), (13, 64), (367, 128), (1, 16), (13, 250), (63, 96), (130, 40))


def instances(
    arch: int, forms: Sequence[tuple[DType, DType, tuple[str, ...]]]
) -> Iterator[Instance]:
    """One for each form of element, output and chain, sizes and configurations in turn."""
    for turn, (dtype, out, chain) in enumerate(forms):
        rounds, index = divmod(turn, len(_SIZES))
        k, n = _SIZES[index]
        problem = GemmProblem(1, n, k, dtype, out, chain)
        configs = named("gemm_rows_sm90").candidates(problem, get(arch))
        if configs:
            yield Instance(configs[rounds % len(configs)].instance(), dtype, out, chain)
