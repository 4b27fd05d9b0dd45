"""What is refused in files must be nothing that onnxbolt writes there itself."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem, GemmProblem
from onnxbolt.kernels.soundness import config_from
from onnxbolt.measurements.keys import Problem
from onnxbolt.plan.cost import candidates
from onnxbolt.tune.soundness import check_problem

CHAIN = ("Bias", "Relu", "Gemm", "Bias", "Relu")
GEMM = GemmProblem(4096, 1024, 1024, DType.F16, DType.F16, ("Bias",))
CONV = ConvProblem(
    32,
    14,
    14,
    256,
    256,
    3,
    3,
    14,
    14,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)
PROBLEMS: tuple[Problem, ...] = (
    GEMM,
    dataclasses.replace(GEMM, m=1, n=16, k=50000),
    dataclasses.replace(GEMM, n=256, k=1433),
    *(
        GemmProblem(m, n, k, DType.F16, DType.F16, CHAIN, inner=(inner,))
        for m, k, inner, n in (
            (4096, 96, 32, 96),
            (2048, 2048, 64, 32),
            (2048, 8192, 256, 64),
            (2048, 3000, 512, 256),
            (2048, 8, 16, 8),
        )
    ),
    CONV,
    dataclasses.replace(CONV, c=3),
    dataclasses.replace(CONV, groups=256),
    dataclasses.replace(CONV, groups=8),
    dataclasses.replace(CONV, chain=CHAIN, inner=(256,)),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_candidates_are_sound(problem: Problem) -> None:
    """On every architecture, of which not each has kernels for all problems."""
    typed = [
        dataclasses.replace(problem, dtype=dtype, out=dtype) for dtype in (problem.dtype, DType.F32)
    ]
    found = [
        (of, config) for of in typed for number in ARCHS for config in candidates(of, get(number))
    ]
    assert found
    for of, config in found:
        assert config_from(config.row()) == config
        check_problem(of, config)


def test_a_tile_is_at_most_so_large() -> None:
    config = next(config for config in candidates(GEMM, get(90)))
    for tile in ((2048, 128, 64), (128, 2048, 64), (128, 128, 0)):
        with pytest.raises(ValueError, match="no kernel has such a tile"):
            config_from(dataclasses.replace(config, threadblock=tile).row())
