"""GEMM on sm_90a whose rows of A TMA cannot read, as a chain of one layer (chain.py) whose loader
does without.

A block has all columns, at most 256. Rows of B are stored as multiples of 16 bytes, which TMA
reads.
"""

from __future__ import annotations

import dataclasses

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels import chain
from onnxbolt.kernels.config import Family, GemmProblem, KernelConfig


def serves(dtype: DType, n: int) -> bool:
    """Whether there is a kernel for `n` columns."""
    return dtype.bytes == 2 and n <= chain.COLUMNS[-1]


def candidates(problem: GemmProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration: `threadblock` is (rows, columns, k); none where other
    kernels' TMA reads the rows."""
    if (
        not arch.wgmma
        or not serves(problem.dtype, problem.n)
        or problem.k % problem.dtype.alignment == 0
    ):
        return ()
    return tuple(
        dataclasses.replace(config, family=Family.GEMM_ROWS_SM90)
        for config in chain.configs(problem, arch)
    )
