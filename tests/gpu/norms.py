"""The problems on which the GPU tests run kernels of normalizations of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE, STORE_VALUES
from onnxbolt.families.norm import NormConfig
from onnxbolt.problems import MAX_TABLES
from tests.gpu.device import Embedding, HeadNorm, Kernel, Library, ModulatedNorm, Norm, Tensor
from tests.gpu.operands import Operands, Problem, random_of
from tests.gpu.reference import assert_codes, epilogue, relative_error

EPSILON = 1e-5
# sequences and tokens, prefixes, and the indices of tables that all sequences or tokens share
_SEQUENCES = ((1, 1), (26, 5), (7, 143), (67, 1), (37, 7))
_PREFIXES = (0, 1, 3, 0, 6)
_HEADS = (1, 5, 7, 2, 37)
_SHARED = ((False, False), (True, False), (False, True), (True, True), (False, False), (True, True))


@dataclass
class NormProblem(Problem):
    """`total` is the tensor for what is normalized, where the kernel stores it, `expected_total`
    what it has to hold."""

    total: Tensor | None = None
    expected_total: np.ndarray | None = None


def assert_right(kernel: Kernel, problem: NormProblem, limit: float) -> None:
    """Fail unless both results are right, launched alone and captured in a graph."""
    kernel.check(problem.arguments)
    for captured in (False, True):
        kernel.launch(problem.arguments, captured)
        assert problem.expected is not None
        answer = problem.output.read()
        if codes := DType.of_codes(answer.dtype):
            assert_codes(answer, problem.expected, codes)
        else:
            assert relative_error(answer, problem.expected) <= limit
        if problem.total is not None:
            assert problem.expected_total is not None
            assert relative_error(problem.total.read(), problem.expected_total) <= limit


def problems(library: Library, instance: Instance) -> list[NormProblem]:
    """Full rows, rows with a tail, short ones; gaps between rows; with and without the mean. Of
    tokens: one sequence, many, with and without tokens in front. Of embeddings: with indices of
    their own, and with those that sequences or tokens share. Modulated: one sequence and many. Of
    heads: one and several, beside
    each other and with gaps between, from the first element on and from others."""
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
    if config.heads:
        return [
            head_problem(library, instance, (*shape[1:], config.access * (i % 3)), heads)
            for i, (shape, heads) in enumerate(zip(shapes, _HEADS, strict=True))
        ]
    if config.tables:
        return [
            embedding_problem(library, instance, (shape[1], *shape[2:]), sequence, _SHARED[i:])
            for i, (shape, sequence) in enumerate(zip(shapes, _SEQUENCES, strict=True))
        ]
    if config.tokens:
        return [
            token_problem(library, instance, (shape[1], *shape[2:]), (*sequence, prefix))
            for shape, sequence, prefix in zip(shapes, _SEQUENCES, _PREFIXES, strict=True)
        ]
    if config.modulation:
        return [
            modulated_problem(library, instance, (shape[1], *shape[2:]), sequence)
            for shape, sequence in zip(shapes, _SEQUENCES, strict=True)
        ]
    return [problem(library, instance, shape) for shape in shapes]


def head_problem(
    library: Library, instance: Instance, shape: tuple[int, int, bool, int], heads: int
) -> NormProblem:
    """`shape` is columns, elements between rows of x, whether the mean is subtracted, and elements
    between heads."""
    columns, gap, centered, between = shape
    tokens, pitch = 1 + 130 // heads, columns + between
    rng, element = random_of(instance, (*shape, heads)), instance.dtype.numpy
    # a head before them and one behind, as keys are among queries and values
    x = rng.normal(0, 1, (tokens, heads + 2, pitch)) + rng.normal(0, 8, (tokens, heads + 2, 1))
    x = x.astype(element)
    operands = Operands(library, instance, (tokens, heads * columns), 0, rng)
    source = Tensor(library, x.reshape(tokens, -1), gap)
    output = Tensor(library, np.zeros((tokens, heads * columns), instance.out.numpy), empty=True)
    arguments = HeadNorm(
        rows=tokens * heads,
        columns=columns,
        centered=centered,
        epsilon=EPSILON,
        x=source.pointer,
        y=output.pointer,
        x_pitch=source.pitch,
        y_pitch=output.pitch,
        epilogue=operands.arguments,
        heads=heads,
        head_pitch=pitch,
        begin=pitch + between,
    )
    heads_of_x = x[:, 1:-1, between:].astype(np.float64)
    rows = normalized(heads_of_x, [], centered).reshape(tokens, -1)
    expected = epilogue(rows, instance.chain, operands.vectors, (), rotation=operands.rotation)
    return NormProblem(arguments, output, expected, (source, operands))


def embedding_problem(
    library: Library,
    instance: Instance,
    shape: tuple[int, int, bool],
    sequence: tuple[int, int],
    shared: Sequence[tuple[bool, bool]],
) -> NormProblem:
    """`shape` is columns, elements between rows of y, and whether the mean is subtracted;
    `sequence` the number of sequences, and their tokens. `shared` says for each table but the first
    whether its indices are the same for all sequences, and for all tokens. Some indices are
    negative or out of range."""
    (columns, gap, centered), (count, tokens) = shape, sequence
    config = instance.config
    assert isinstance(config, NormConfig)
    rng, element = random_of(instance, (*shape, *sequence)), instance.dtype.numpy
    operands = Operands(library, instance, (tokens, columns), 0, rng)
    added = np.zeros((count, tokens, columns))
    if operands.tensors:
        added += operands.tensors[0].astype(np.float64)
    embeddings, kept = (Embedding * MAX_TABLES)(), []
    for i in range(config.tables):
        of_all, of_tokens = shared[i - 1] if i else (False, False)
        rows = 1 + 10 * i
        table = rng.normal(0, 1, (rows, columns)) + rng.normal(0, 8, (rows, 1))
        table = table.astype(element)
        size = (1 if of_all else count, 1 if of_tokens else tokens)
        kind = (np.int32, np.int64)[(count + i) % 2]
        indices = rng.integers(-rows, rows, size).astype(kind)
        indices.flat[0] = (rows, -rows - 1, np.iinfo(kind).min)[i]
        held = [Tensor(library, table), Tensor(library, indices)]
        embeddings[i] = Embedding(
            *(tensor.pointer for tensor in held),
            rows,
            0 if of_all else size[1],
            0 if of_tokens else 1,
            kind is np.int64,
        )
        kept += held
        added += _looked_up(table, indices)
    output = Tensor(
        library, np.zeros((count * tokens, columns), instance.out.numpy), gap, empty=True
    )
    total = Tensor(library, np.zeros((count * tokens, columns), element), empty=True)
    stores = STORE in instance.chain
    arguments = Norm(
        rows=count * tokens,
        columns=columns,
        centered=centered,
        epsilon=EPSILON,
        y=output.pointer,
        sum=total.pointer if stores else None,
        y_pitch=output.pitch,
        epilogue=operands.arguments,
        tokens=tokens,
        tables=config.tables,
        embeddings=embeddings,
    )
    sums = added.reshape(-1, columns)
    if stores:
        sums = sums.astype(np.float32).astype(element).astype(np.float64)
    expected = normalized(sums, operands.vectors, centered)
    stored = (total, sums) if stores else (None, None)
    return NormProblem(arguments, output, expected, (operands, total, *kept), *stored)


def _looked_up(table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The rows that indices name, zeros where they are out of range."""
    rows = table.shape[0]
    known = (indices >= -rows) & (indices < rows)
    found: np.ndarray = table.astype(np.float64)[np.where(known, indices, 0)]
    return found * known[..., None]


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
    output = Tensor(
        library, np.zeros((count * tokens, columns), instance.out.numpy), gap, empty=True
    )
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


def modulated_problem(
    library: Library, instance: Instance, shape: tuple[int, int, bool], sequence: tuple[int, int]
) -> NormProblem:
    """`shape` is columns, elements between rows, and whether the mean is subtracted; `sequence` the
    number of sequences, and their tokens."""
    (columns, gap, centered), (count, tokens) = shape, sequence
    plain = problem(library, instance, (count * tokens, columns, gap, centered))
    config = instance.config
    assert isinstance(config, NormConfig)
    rng, element = random_of(instance, (*shape, *sequence)), instance.dtype.numpy
    vectors = [rng.normal(0, 1, (count, columns)).astype(element) for _ in range(3)]
    held = [Tensor(library, vector) for vector in vectors[: 1 + config.modulation]]
    arguments = ModulatedNorm(tokens=tokens)
    ctypes.memmove(
        ctypes.addressof(arguments), ctypes.addressof(plain.arguments), ctypes.sizeof(Norm)
    )
    arguments.tokens = tokens
    for name, tensor in zip(("scale", "shift", "gate"), held, strict=False):
        setattr(arguments, name, tensor.pointer)
    scale, shift, gate = (np.repeat(v.astype(np.float64), tokens, axis=0) for v in vectors)
    source, operands = plain.kept
    added = source.read().astype(np.float64) * (gate if config.modulation > 1 else 1)
    added = added + sum(tensor.astype(np.float64) for tensor in operands.tensors)
    stores = plain.total is not None
    if stores:
        added = added.astype(np.float32).astype(element).astype(np.float64)
    expected = normalized(added, operands.vectors, centered) * (1 + scale) + shift
    kept = (*plain.kept, *held)
    stored = added if stores else None
    return NormProblem(arguments, plain.output, expected, kept, plain.total, stored)


def problem(library: Library, instance: Instance, shape: tuple[int, int, int, bool]) -> NormProblem:
    """`shape` is rows, columns, elements between rows, and whether the mean is subtracted."""
    rows, columns, gap, centered = shape
    rng, element = random_of(instance, shape), instance.dtype.numpy
    # means that are large beside the deviations: squares without the mean would cancel
    x = (rng.normal(0, 1, (rows, columns)) + rng.normal(0, 8, (rows, 1))).astype(element)
    operands = Operands(library, instance, (rows, columns), gap, rng)
    source = Tensor(library, x, gap)
    output = Tensor(library, np.zeros(x.shape, instance.out.numpy), gap, empty=True)
    stores = STORE in instance.chain
    beside = STORE_VALUES[instance.dtype] in instance.chain
    total = Tensor(library, np.zeros_like(x), empty=True) if stores or beside else None
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
    expected_total = added if stores else expected if beside else None
    if instance.out.is_code:
        expected = epilogue(expected, instance.chain[-1:], (), ())
    kept = (source, operands)
    return NormProblem(arguments, output, expected, kept, total, expected_total)


def normalized(x: np.ndarray, vectors: list[np.ndarray], centered: bool) -> np.ndarray:
    """In float64; `vectors` are gamma and beta, as far as there are such."""
    if centered:
        x = x - x.mean(-1, keepdims=True)
    result: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    for vector, combine in zip(vectors, (np.multiply, np.add), strict=False):
        result = combine(result, vector.astype(np.float64))
    return result
