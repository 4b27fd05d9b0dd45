"""Problems for GEMMs whose rows TMA cannot read."""

from __future__ import annotations

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.families.gemm_rows_sm90 import GemmRowsSm90Config
from tests.gpu.device import Gemm, Library, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import epilogue

_CHUNK = 8  # elements of 16 bytes
# rows, by how many columns short of the kernel's, elements between rows of A
SHAPES = ((1, 0, 0), (197, 3, 5), (64 * 132 * 3 + 65, 0, 0), (1000, 8, 2))


def problem(library: Library, instance: Instance, shape: tuple[int, int, int]) -> Problem:
    """Rows of an odd number of values, the longest that the kernel takes but one; rows of B are
    whole chunks."""
    config, (m, less, gap) = instance.config, shape
    assert isinstance(config, GemmRowsSm90Config)
    n, k = config.columns - less, config.depth - 1 - less
    rng = random_of(instance, shape)
    a, b = (
        rng.normal(0, 1, (m, k)).astype(instance.dtype.numpy),
        rng.normal(0, k**-0.5, (n, k)).astype(instance.dtype.numpy),
    )
    operands = Operands(library, instance, (m, n), gap, rng)
    rows, weights = Tensor(library, a, gap), Tensor(library, b, -k % _CHUNK)
    output = Tensor(library, np.zeros((m, n), instance.out.numpy), gap, empty=True)
    arguments = Gemm(
        m,
        n,
        k,
        rows.pointer,
        weights.pointer,
        output.pointer,
        rows.pitch,
        weights.pitch,
        output.pitch,
        operands.arguments,
    )
    product = a.astype(np.float64) @ b.astype(np.float64).T
    return Problem(
        arguments,
        output,
        epilogue(product, instance.chain, operands.vectors, operands.tensors),
        (rows, weights, operands),
    )
