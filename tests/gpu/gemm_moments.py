"""The problems on which the GPU tests run GEMMs that read or write statistics of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import FOLDED_NORMS, MOMENTS
from onnxbolt.problems.gemm_moments import PART
from tests.gpu.device import Gemm, Library, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import epilogue, rounded

# rows, parts of a row of D and of A, elements of 16 bytes between rows: less than a warpgroup's
# rows, tails of rows and of columns, more parts than are read at once, more tiles than blocks
SHAPES = ((1, 1, 1, 0), (63, 3, 5, 1), (65, 1, 17, 0), (500, 5, 12, 2), (20_003, 4, 3, 0))
_UNNORMALIZED = {True: "LayerNorm", False: "RmsNorm"}


@dataclass
class MomentsProblem(Problem):
    """`moments` is the tensor for the statistics of the output, where the kernel writes them."""

    moments: Tensor | None = None


def problems(library: Library, instance: Instance) -> list[MomentsProblem]:
    """All shapes."""
    return [problem(library, instance, shape) for shape in SHAPES]


def problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int], mean: float = 4.0
) -> MomentsProblem:
    """Rows that are normalized have means of about `mean` times their deviations."""
    dtype, chain = instance.dtype, instance.chain
    rows, wide, deep, gaps = shape
    reads, writes = chain[0] in FOLDED_NORMS, chain[-1] == MOMENTS
    n, k, gap = wide * PART + (0 if writes else 24), deep * PART, gaps * 8
    rng = random_of(instance, shape)
    a = rng.normal(0, 1, (rows, k)) + (rng.normal(0, mean, (rows, 1)) if reads else 0)
    a, b = rounded(a, dtype), rounded(rng.normal(0, k**-0.5, (n, k)), dtype)
    operands = Operands(library, instance, (rows, n), gap, rng)
    source, weight = Tensor(library, a, gap), Tensor(library, b)
    output = Tensor(library, np.zeros((rows, n), dtype.numpy), gap, empty=True)
    arguments = Gemm.of(source, weight, output, operands.arguments)
    kept: list[object] = [source, weight, operands]
    steps, vectors, exact = chain[reads : len(chain) - writes], operands.vectors, a.astype(float)
    if reads:
        given = Tensor(library, moments_of(a).astype(np.float32))
        arguments.moments_of_a = given.pointer
        kept.append(given)
        centered = FOLDED_NORMS[chain[0]]
        if centered:
            sums = Tensor(library, b.astype(np.float64).sum(1).astype(np.float32)[None])
            arguments.epilogue.vectors[0] = sums.pointer
            kept.append(sums)
            vectors = vectors[1:]
        exact = epilogue(exact, (_UNNORMALIZED[centered],), (), ())
    moments = None
    if writes:
        moments = Tensor(library, np.zeros((wide, rows, 2), np.float32), empty=True)
        arguments.moments_of_d = moments.pointer
    expected = epilogue(exact @ b.astype(float).T, steps, vectors, operands.tensors)
    return MomentsProblem(arguments, output, expected, tuple(kept), moments)


def moments_of(values: np.ndarray) -> np.ndarray:
    """[parts, rows, 2] of the mean and of the sum of squared differences from it."""
    parts = values.astype(np.float64).reshape(len(values), -1, PART).transpose(1, 0, 2)
    means = parts.mean(-1)
    return np.stack((means, ((parts - means[..., None]) ** 2).sum(-1)), axis=-1)
