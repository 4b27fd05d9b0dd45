"""Several GEMMs in one kernel: problems on the device, with the answer in float64, and those
that each family is tested with."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import layers
from onnxbolt.families.b2b_gemm_small import B2bGemmSmallConfig
from onnxbolt.families.b2b_gemm_wide_sm90 import B2bGemmWideSm90Config
from onnxbolt.families.blocks.b2b import B2bConfig, LayersConfig
from onnxbolt.families.blocks.b2b_mma import B2bMmaConfig
from tests.gpu.device import Chain, Library, Tensor
from tests.gpu.operands import Operands, Problem, parameters, random_of
from tests.gpu.reference import epilogue, rounded


def chain_problem(
    library: Library, instance: Instance, shape: tuple[int, int, int, int]
) -> Problem:
    """Several GEMMs; `shape` is the rows, and by how much k, the inner layers and the last one
    fall short of the kernel's columns."""
    config = instance.config
    assert isinstance(config, LayersConfig)
    m, *short = shape
    rng, chains = random_of(instance, shape), layers(instance.chain)
    widths = [n - short[1] for n in config.widths]
    widths[-1] += short[1] - short[2]
    x = rng.normal(0, 1, (m, config.depth - short[0])).astype(instance.dtype.numpy)
    source, output = (
        Tensor(library, x),
        Tensor(library, np.zeros((m, widths[-1]), instance.out.numpy), empty=True),
    )
    arguments = Chain(
        m,
        x.shape[1],
        len(widths),
        a=source.pointer,
        d=output.pointer,
        lda=source.pitch,
        ldd=output.pitch,
    )
    kept: list[Any] = [source]
    value = x
    for i, (n, steps) in enumerate(zip(widths, chains, strict=True)):
        weight = rng.normal(0, value.shape[1] ** -0.5, (n, value.shape[1])).astype(
            instance.dtype.numpy
        )
        layer = Instance(config, instance.dtype, instance.out, steps)
        # rows of weights are aligned, whatever A's are
        zeros = -weight.shape[1] % instance.dtype.alignment if i == 0 else 0
        operands, filters = (
            Operands(library, layer, (m, n), 0, rng),
            Tensor(library, np.pad(weight, ((0, 0), (0, zeros)))),
        )
        arguments.ldw = arguments.ldw if i else filters.pitch
        arguments.n[i], arguments.weights[i], arguments.epilogue[i] = (
            n,
            filters.pointer,
            operands.arguments,
        )
        product = value.astype(np.float64) @ weight.astype(np.float64).T
        value = epilogue(product, steps, operands.vectors, operands.tensors)
        # the next product reads it as its operand, in this type
        value = value if i == len(widths) - 1 else rounded(value, instance.dtype)
        kept += [operands, filters]
    params = parameters(instance)
    arguments.epilogue[0].params[: len(params)] = params
    return Problem(arguments, output, value, tuple(kept))


def sm90_chains(library: Library, instance: Instance) -> list[Any]:
    """One row, tails of rows, k and columns, rows that TMA cannot write, several tiles for each
    block; k of any multiple where TMA does not read the rows."""
    config = instance.config
    assert isinstance(config, B2bConfig)
    short = (0, 8, 8, 0) if config.tma_rows else (1, 3, 6, 11)
    rounds = 64 * 132 * max(config.consumers, 3)  # rows of one round of all warpgroups of an H200
    shapes = ((1, 0, 0), (197, 8, 8), (rounds + 65, 0, 3), (1000, 8, 0))
    return [
        chain_problem(library, instance, (rows, k, inner, last))
        for k, (rows, inner, last) in zip(short, shapes, strict=True)
    ]


def wide_chains(library: Library, instance: Instance) -> list[Any]:
    """As sm90_chains; one tile, fewer tiles than SMs, and more, of 64 rows and of 128."""
    assert isinstance(instance.config, B2bGemmWideSm90Config)
    short = (0, 8, 8, 0) if instance.config.tma_rows else (1, 3, 6, 11)
    shapes = ((1, 0, 0), (197, 8, 8), (128 * 132 + 65, 0, 3), (1000, 8, 0))
    return [
        chain_problem(library, instance, (rows, k, inner, last))
        for k, (rows, inner, last) in zip(short, shapes, strict=True)
    ]


def chains_2x(library: Library, instance: Instance) -> list[Any]:
    """One row, tails of rows, k and columns, fewer tiles than SMs and several for each; long
    rows, and short ones."""
    assert isinstance(instance.config, B2bMmaConfig)
    a, c = instance.config.access_k, instance.config.access_n
    shapes = (
        (1, 0, 0, 0),
        (197, a, 8, c),
        (64 * 132 * 3 + 65, -9 * a, 0, 0),
        (1000, -400 * a, 8, 0),
        (63, -64, 0, c),
    )
    return [chain_problem(library, instance, shape) for shape in shapes]


def small_chains(library: Library, instance: Instance) -> list[Any]:
    """One row, whole blocks of rows and tails, more rows than threads run at a time; k and
    columns short by whole accesses."""
    config = instance.config
    assert isinstance(config, B2bGemmSmallConfig)
    a, c = config.access_k, config.access_n
    shapes = ((1, 0, 0, 0), (2464, 0, 3, 0), (128 * 16 * 132 + 77, a, 1, 0), (300, 2 * a, 0, c))
    return [
        chain_problem(library, instance, shape)
        for shape in shapes
        if shape[1] < config.depth and shape[3] < config.widths[-1]
    ]
