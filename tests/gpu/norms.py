"""The problems on which the GPU tests run kernels of normalizations of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import STORE
from onnxbolt.families.norm import NormConfig
from tests.gpu.device import Library, Norm, Tensor
from tests.gpu.operands import Operands, Problem, random_of

EPSILON = 1e-5


@dataclass
class NormProblem(Problem):
    """`total` is the tensor for the sum, where the kernel stores it, `expected_total` what it has
    to hold."""

    total: Tensor | None = None
    expected_total: np.ndarray | None = None


def problems(library: Library, instance: Instance) -> list[NormProblem]:
    """Full rows, rows with a tail, short ones; gaps between rows; with and without the mean. Of
    tokens: one sequence, many, with and without tokens in front."""
    config = instance.config
    assert isinstance(config, NormConfig)
    width, most = config.access, config.lanes * config.vectors * config.access
    tail, short = max(most - width, width), most // 2 // width * width + width
    shapes = (
        (1, most, 0, True),
        (130, most, 0, False),
        (1001, tail, 0, True),
        (67, short, 2 * width, True),
        (259, width, 0, False),
    )
    if config.tokens:
        sequences = ((1, 1, 0), (26, 5, 1), (7, 143, 3), (67, 1, 0), (37, 7, 6))
        return [
            token_problem(library, instance, (shape[1], *shape[2:]), sequence)
            for shape, sequence in zip(shapes, sequences, strict=True)
        ]
    return [problem(library, instance, shape) for shape in shapes]


def token_problem(
    library: Library,
    instance: Instance,
    shape: tuple[int, int, bool],
    sequence: tuple[int, int, int],
) -> NormProblem:
    """`shape` is columns, elements between rows of x, and whether the mean is subtracted;
    `sequence` the number of sequences, their tokens, and how many of these x does not have."""
    (columns, gap, centered), (count, tokens, prefix) = shape, sequence
    rng, element = random_of(instance, (*shape, *sequence)), instance.dtype.numpy
    own = tokens - prefix
    x = rng.normal(0, 1, (count * own, columns)) + rng.normal(0, 8, (count * own, 1))
    x = x.astype(element)
    operands = Operands(library, instance, (tokens, columns), 0, rng)
    source = Tensor(library, x, gap)
    output = Tensor(library, np.zeros((count * tokens, columns), element), gap, empty=True)
    total = Tensor(library, np.zeros((count * tokens, columns), element), empty=True)
    stores = STORE in instance.chain
    arguments = Norm(
        count * tokens,
        columns,
        centered,
        EPSILON,
        source.pointer,
        output.pointer,
        total.pointer if stores else None,
        source.pitch,
        output.pitch,
        operands.arguments,
        tokens,
        prefix,
    )
    sequences = np.zeros((count, tokens, columns))
    sequences[:, prefix:] = x.astype(np.float64).reshape(count, own, columns)
    added = (sequences + operands.tensors[0].astype(np.float64)).reshape(-1, columns)
    if stores:
        added = added.astype(np.float32).astype(element).astype(np.float64)
    expected = normalized(added, operands.vectors, centered)
    kept = (source, operands, total)
    stored = (total, added) if stores else (None, None)
    return NormProblem(arguments, output, expected, kept, *stored)


def problem(library: Library, instance: Instance, shape: tuple[int, int, int, bool]) -> NormProblem:
    """`shape` is rows, columns, elements between rows, and whether the mean is subtracted."""
    rows, columns, gap, centered = shape
    rng, element = random_of(instance, shape), instance.dtype.numpy
    # means that are large beside the deviations: squares without the mean would cancel
    x = (rng.normal(0, 1, (rows, columns)) + rng.normal(0, 8, (rows, 1))).astype(element)
    operands = Operands(library, instance, (rows, columns), gap, rng)
    source = Tensor(library, x, gap)
    output = Tensor(library, np.zeros_like(x), gap, empty=True)
    stores = STORE in instance.chain
    total = Tensor(library, np.zeros_like(x), empty=True) if stores else None
    arguments = Norm(
        rows,
        columns,
        centered,
        EPSILON,
        source.pointer,
        output.pointer,
        total.pointer if total else None,
        source.pitch,
        output.pitch,
        operands.arguments,
    )
    added = x.astype(np.float64) + sum(tensor.astype(np.float64) for tensor in operands.tensors)
    if stores:
        added = added.astype(np.float32).astype(element).astype(np.float64)
    expected = normalized(added, operands.vectors, centered)
    kept = (source, operands)
    return NormProblem(arguments, output, expected, kept, total, added if stores else None)


def normalized(x: np.ndarray, vectors: list[np.ndarray], centered: bool) -> np.ndarray:
    """In float64; `vectors` are gamma and beta, as far as there are such."""
    if centered:
        x = x - x.mean(-1, keepdims=True)
    result: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    for vector, combine in zip(vectors, (np.multiply, np.add), strict=False):
        result = combine(result, vector.astype(np.float64))
    return result
