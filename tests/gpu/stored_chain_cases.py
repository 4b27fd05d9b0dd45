"""Instances of kernels for two products whose first result is stored as well, or has residuals,
or both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT, STORE
from onnxbolt.families import named
from onnxbolt.problems import GemmProblem

# k, the first layer's columns and those of the second
_WIDTHS = (
    (64, 256, 64),
    (128, 512, 128),
    (64, 256, 128),
    (48, 128, 24),
    (16, 64, 16),
    (256, 1024, 256),
    (200, 320, 192),
    (32, 64, 96),
    (128, 448, 40),
)
_RESIDUALS = (("Add",), (), ("Mul", "Add"))
_TYPES = ((DType.F16, DType.F16), (DType.BF16, DType.BF16), (DType.BF16, DType.F32))


def instances(arch: int, activations: tuple[str, ...]) -> Iterator[Instance]:
    """Every activation in both layers, the candidates of the planner in turn; residuals of a
    result that is not stored."""
    turns = itertools.cycle(range(7))
    for i, (activation, (k, inner, n)) in enumerate(
        zip(activations * 2, itertools.cycle(_WIDTHS), strict=False)
    ):
        other = activations[-1 - i % len(activations)]
        residual, (dtype, out) = _RESIDUALS[i % len(_RESIDUALS)], _TYPES[i % len(_TYPES)]
        stored = (STORE,) if i < len(activations) or not residual else ()
        chain = ("Bias", *residual, activation, *stored, PRODUCT, "Scale", "Bias", other)
        problem = GemmProblem(1, n, k, dtype, out, chain, (inner,))
        configs = named("b2b_stored_sm90").candidates(problem, get(arch))
        if configs:
            yield Instance(configs[next(turns) % len(configs)].instance(), dtype, out, chain)
