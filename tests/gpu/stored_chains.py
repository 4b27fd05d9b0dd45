"""Problems for kernels of two products whose first result is also stored, or which add
residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import STORE, layers
from onnxbolt.families.b2b_stored_sm90 import B2bStoredSm90Config
from tests.gpu.device import Chain, Library, Tensor
from tests.gpu.operands import Operands, Problem, parameters, random_of
from tests.gpu.reference import epilogue, rounded

# rows, and by how much k, the stored columns and the last ones fall short of the kernel's, in
# eights: one row, tails of rows, k and columns, several rounds of all SMs, fewer tiles than SMs
SHAPES = ((1, 0, 0, 0), (197, 1, 1, 1), (64 * 132 * 3 + 65, 0, 2, 0), (1000, 0, 0, 1))


@dataclass
class StoredProblem(Problem):
    """With the other output, where there is one, and what that has to be."""

    stored: Any = None
    expected_stored: Any = None


def stored_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int]
) -> StoredProblem:
    """One of SHAPES, where the kernel has as many columns."""
    config = instance.config
    assert isinstance(config, B2bStoredSm90Config)
    m, *short = shape
    rng, (first, last) = random_of(instance, shape), layers(instance.chain)
    k, inner, n = (
        max(8, columns - 8 * fewer)
        for columns, fewer in zip((config.depth, *config.widths), short, strict=True)
    )
    x = rng.normal(0, 1, (m, k)).astype(instance.dtype.numpy)
    weights = [
        rng.normal(0, depth**-0.5, (columns, depth)).astype(instance.dtype.numpy)
        for columns, depth in ((inner, k), (n, inner))
    ]
    operands = [
        Operands(
            library,
            Instance(instance.config, instance.dtype, instance.out, steps),
            (m, columns),
            0,
            rng,
        )
        for steps, columns in ((first, inner), (last, n))
    ]
    between = epilogue(
        x.astype(np.float64) @ weights[0].astype(np.float64).T,
        first,
        operands[0].vectors,
        operands[0].tensors,
    )
    operand = rounded(between, instance.dtype).astype(np.float64)  # as it is stored, and multiplied
    expected = epilogue(
        operand @ weights[1].astype(np.float64).T, last, operands[1].vectors, operands[1].tensors
    )
    source, filters = Tensor(library, x, 8), [Tensor(library, weight) for weight in weights]
    output = Tensor(library, np.zeros((m, n), instance.out.numpy), 8, empty=True)
    stored = (
        Tensor(library, np.zeros((m, inner), instance.dtype.numpy), empty=True)
        if STORE in instance.chain
        else None
    )
    arguments = Chain(
        m, k, 2, a=source.pointer, d=output.pointer, lda=source.pitch, ldd=output.pitch
    )
    if stored is not None:
        arguments.stored = stored.pointer
    for i, columns in enumerate((inner, n)):
        arguments.n[i], arguments.weights[i], arguments.epilogue[i] = (
            columns,
            filters[i].pointer,
            operands[i].arguments,
        )
    params = parameters(instance)
    arguments.epilogue[0].params[: len(params)] = params
    return StoredProblem(
        arguments, output, expected, (source, *filters, *operands), stored, between
    )
