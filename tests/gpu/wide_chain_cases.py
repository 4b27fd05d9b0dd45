"""Instances of kernels for several GEMMs of up to 512 columns: every activation in all layers,
tiles of 64 and 128 rows in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import named
from onnxbolt.problems import GemmProblem

# k, whose rows TMA reads or not, and the columns of each layer
_CHAINS = (
    (13, (512, 256, 64, 16)),
    (512, (256, 128)),
    (367, (512, 256, 1)),
    (96, (96, 512, 256)),
    (256, (512, 512)),
    (429, (256, 64, 16)),
    (40, (384, 96)),
    (1000, (256, 200)),
    (16, (512, 192, 384, 32)),
)
_RESIDUALS: tuple[tuple[str, ...], ...] = ((), ("Add",), (), ("Mul", "Add"), ())
_TYPES = (
    (DType.F16, DType.F16),
    (DType.BF16, DType.F32),
    (DType.F16, DType.F32),
    (DType.BF16, DType.BF16),
)


def instances(arch: int, activations: tuple[str, ...]) -> Iterator[Instance]:
    """The candidates of the planner in turn."""
    cases = zip(
        activations * 2,
        itertools.cycle(_CHAINS),
        itertools.cycle(_RESIDUALS),
        itertools.cycle(_TYPES),
        strict=False,
    )
    for turn, (activation, (k, widths), residual, (dtype, out)) in enumerate(cases):
        chain = (*_layers(activation, len(widths)), *residual)
        problem = GemmProblem(1, widths[-1], k, dtype, out, chain, widths[:-1])
        configs = named("b2b_gemm_wide_sm90").candidates(problem, get(arch))
        if configs:
            yield Instance(configs[turn % len(configs)].instance(), dtype, out, chain)


def _layers(activation: str, count: int) -> tuple[str, ...]:
    """Layers of as many products."""
    steps = ("Scale", "Bias", activation)
    return (*steps, *(step for _ in range(count - 1) for step in (PRODUCT, *steps)))
