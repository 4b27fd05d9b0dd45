"""The problems on which the GPU tests run kernels of GEMMs that normalize rows."""

from __future__ import annotations

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import STORE, split_at_norm
from onnxbolt.families.gemm_norm_sm90 import GemmNormSm90Config
from tests.gpu.device import Gemm, Library, Tensor
from tests.gpu.norms import NormProblem
from tests.gpu.operands import Operands, random_of
from tests.gpu.reference import epilogue, rounded

# rows, elements of x in accesses of 16 bytes, elements between rows of x and of y likewise: less
# than a warpgroup's rows, a tail, fewer k-blocks than stages, more tiles than clusters
SHAPES = ((1, 8, 0), (63, 1, 0), (64, 40, 1), (65, 9, 0), (500, 33, 2), (20_003, 17, 0))


def problems(library: Library, instance: Instance) -> list[NormProblem]:
    """All shapes; columns are the configuration's."""
    return [problem(library, instance, shape) for shape in SHAPES]


def problem(library: Library, instance: Instance, shape: tuple[int, int, int]) -> NormProblem:
    """Rows have means that are several times their deviations: squares without the mean would
    cancel."""
    config, dtype = instance.config, instance.dtype
    assert isinstance(config, GemmNormSm90Config)
    rows, accesses, gaps = shape
    rng, element = random_of(instance, shape), dtype.numpy
    n, k, gap = config.columns * config.cluster[1], accesses * dtype.alignment, gaps * 8
    a = rounded(rng.normal(0, 1, (rows, k)), dtype)
    b = rounded(rng.normal(0, k**-0.5, (n, k)) + rng.normal(0, 4 * k**-0.5, k), dtype)
    operands = Operands(library, instance, (rows, n), gap, rng)
    source, weight = Tensor(library, a, gap), Tensor(library, b)
    output = Tensor(library, np.zeros((rows, n), element), gap, empty=True)
    stores = STORE in instance.chain
    total = Tensor(library, np.zeros((rows, n), element), empty=True) if stores else None
    arguments = Gemm.of(source, weight, output, operands.arguments)
    arguments.stored = total.pointer if total else None
    before, behind = split_at_norm(instance.chain)
    first = len(operands.vectors) - sum(step in ("Scale", "Bias") for step in behind)
    product = a.astype(np.float64) @ b.astype(np.float64).T
    value = epilogue(product, before, operands.vectors[:first], operands.tensors)
    if stores:
        value = value.astype(np.float32).astype(element).astype(np.float64)
    norm = instance.chain[-len(behind) - 1] if behind else instance.chain[-1]
    expected = epilogue(value, (norm, *behind), operands.vectors[first:], ())
    kept = (source, weight, operands)
    return NormProblem(arguments, output, expected, kept, total, value if stores else None)
