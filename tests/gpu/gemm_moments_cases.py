"""Kernel instances of GEMMs that hand statistics of rows to one another, for the GPU tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import GemmMomentsProblem
from onnxbolt.tune.tasks import instance_of

CHAINS: tuple[tuple[str, ...], ...] = (
    ("FoldedLayerNorm", "Bias"),
    ("FoldedLayerNorm", "Bias", "GeluErf"),
    ("FoldedRmsNorm",),
    ("FoldedLayerNorm", "Bias", "Add", "Moments"),
    ("Bias", "Add", "Moments"),
    ("Bias", "Moments"),
    ("Add", "Moments"),
)
_SHAPE = 20_000, 768, 256  # a nominal problem's, which has tiles of all widths
_APART = {DType.F16: 11, DType.BF16: 23}  # configurations from one that is tested to the next


def instances(arch: int, types: tuple[DType, ...]) -> Iterator[Instance]:
    """Each chain with some of the tiles in turn; none on other architectures."""
    family = named("gemm_sm90")
    if not family.runs_on(get(arch)):
        return
    turns = itertools.count()
    for (dtype, apart), chain in itertools.product(_APART.items(), CHAINS):
        problem = GemmMomentsProblem(*_SHAPE, dtype, dtype, chain)
        configs = family.candidates(problem, get(arch)) if dtype in types else ()
        for config in configs[3 * next(turns) % apart :: apart]:
            yield instance_of(problem, config)
