"""Instances of our own sm_90a kernels: every activation and type, each form of operands and
casts, tiles and schedules in turn."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN
from onnxbolt.families import named
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.problems import ConvProblem, GemmProblem, GluProblem, Product, RotaryProblem

Form = tuple[DType, DType, tuple[str, ...]]  # element, output, chain

# columns of nominal problems, which decide the widths of the tiles
_COLUMNS = (256, 64, 128, 40, 192, 72, 8, 512)
_GEMM = (20_000, 256)  # rows and k
_CONV = (48, 28, 64)  # batch, image and channels of a 3x3 convolution


def instances(arch: int, forms: Sequence[Form]) -> Iterator[Instance]:
    """GEMM and convolution, one instance for each form; none on other architectures."""
    turns = itertools.count()
    for family, (dtype, out, chain) in itertools.product(
        (named("gemm_sm90"), named("conv_sm90")), forms
    ):
        columns = _COLUMNS[(turn := next(turns)) % len(_COLUMNS)]
        gemm = GemmProblem(_GEMM[0], columns, _GEMM[1], dtype, out, chain)
        configs = _configs(
            gemm if family is named("gemm_sm90") else _conv(dtype, out, chain, columns), arch
        )
        if configs:
            yield Instance(configs[5 * turn % len(configs)], dtype, out, chain)
    yield from (
        *_short_blocks(arch),
        *_along_columns(arch),
        *_whole_rows(arch),
        *_swapped(arch),
        *_means(arch),
        *_gated(arch),
        *_rotated(arch),
    )


def _short_blocks(arch: int) -> Iterator[Instance]:
    """Convolutions of few channels, one for each length of a k-block that these give."""
    for channels in (16, 32, 48):
        problem = _conv(DType.F16, DType.F16, ("Bias", "Relu"), 64, channels)
        by_length = {config.k: config for config in _configs(problem, arch) if not config.resident}
        yield from (_instance(problem, config) for config in by_length.values())


def _along_columns(arch: int) -> Iterator[Instance]:
    """A cluster whose blocks share rows of A, which the planner does not offer."""
    problem = _conv(DType.F16, DType.F16, ("Bias", "Add", "Relu"), 256)
    for config in [config for config in _configs(problem, arch) if config.cluster == (2, 1)][:1]:
        yield _instance(problem, dataclasses.replace(config, cluster=(1, 2)))


def _whole_rows(arch: int) -> Iterator[Instance]:
    """Tiles whose rows are stored whole or in halves, and residuals loaded so: cooperative and
    pingpong, one block of 64 rows and more."""
    forms = (
        (DType.F16, ("Bias", "Relu")),
        (DType.F16, ("Bias", "Add", "Relu")),
        (DType.BF16, ("Add",)),
    )
    for turn, (columns, (dtype, chain)) in enumerate(
        itertools.product((48, 80, 96, 112, 160), forms)
    ):
        gemm = GemmProblem(_GEMM[0], columns, _GEMM[1], dtype, dtype, chain)
        for problem in (gemm, _conv(dtype, dtype, chain, columns)):
            configs = [config for config in _configs(problem, arch) if config.columns == columns]
            yield from (_instance(problem, config) for config in configs[turn % 5 :: 7])


def _swapped(arch: int) -> Iterator[Instance]:
    """Each height of a tile, which follows from the number of rows; chains without tensors."""
    forms = (
        (DType.F16, DType.F16, ("Bias", "Relu")),
        (DType.BF16, DType.BF16, ("Scale", "Bias", "Silu")),
        (DType.F32, DType.F16, ()),
    )
    for rows, (dtype, out, chain) in zip((6272, 10_000, 7300), forms, strict=True):
        conv = dataclasses.replace(_conv(dtype, out, chain, 256), n=rows, p=1, q=1)
        for problem in (GemmProblem(rows, 256, 256, dtype, out, chain), conv):
            configs = [config for config in _configs(problem, arch) if config.swapped]
            yield from (_instance(problem, config) for config in configs)


def _means(arch: int) -> Iterator[Instance]:
    """Convolutions whose result is a mean, some kernels of each form: residuals that TMA loads
    and others, narrow and wide tiles."""
    forms = (
        (64, DType.F16, DType.F16, ("Bias", "Add", "Relu")),
        (512, DType.F16, DType.F16, ("Bias", "Add", "Relu")),
        (192, DType.BF16, DType.BF16, ("Bias", "HardSwish")),
        (40, DType.F16, DType.F16, ("Add",)),
        (128, DType.F16, DType.F32, ("Bias", "Add")),
        (256, DType.F32, DType.F32, ("Scale", "Bias", "Add", "Silu")),
        (8, DType.F16, DType.F16, ()),
        (96, DType.BF16, DType.F32, ("Bias", "Relu")),
        (48, DType.F16, DType.F16, ("Bias", "Add", "Relu")),
        (80, DType.BF16, DType.BF16, ("Bias", "Add")),
        (112, DType.F16, DType.F16, ("Bias", "Relu")),
    )
    for turn, (columns, dtype, out, chain) in enumerate(forms):
        problem = dataclasses.replace(
            _conv(dtype, out, (*chain, MEAN), columns), h=8, w=8, p=8, q=8, n=300
        )
        configs = _configs(problem, arch)[turn % 3 :: 8]
        yield from (_instance(problem, config) for config in configs)


def _gated(arch: int) -> Iterator[Instance]:
    """Both halves of a gated unit, some kernels of each form: narrow and wide tiles, results of
    other types, residuals behind the gate."""
    forms = (
        (3072, DType.F16, DType.F16, ("Silu", "Gate")),
        (256, DType.F16, DType.F16, ("Bias", "GeluErf", "GateBias")),
        (96, DType.BF16, DType.BF16, ("Silu", "Gate", "Add")),
        (48, DType.F16, DType.F16, ("Sigmoid", "GateBias", "Scale", "Relu")),
        (128, DType.F32, DType.F32, ("Bias", "Silu", "GateBias", "Add")),
        (64, DType.F16, DType.F32, ("GeluTanh", "Gate", "Add")),
        (8, DType.F16, DType.F16, ("Gate",)),
        (24, DType.BF16, DType.F32, ("Bias", "Gate")),
        (56, DType.F32, DType.F16, ("LeakyRelu", "Gate")),
    )
    for turn, (columns, dtype, out, chain) in enumerate(forms):
        problem = GluProblem(_GEMM[0], columns, _GEMM[1], dtype, out, chain)
        configs = _configs(problem, arch)[turn % 3 :: 8]
        yield from (_instance(problem, config) for config in configs)


def _rotated(arch: int) -> Iterator[Instance]:
    """Pairs of columns rotated by a table, some kernels of each form: with and without a bias,
    results of other types."""
    forms = (
        (3072, DType.F16, DType.F16, ("Bias", "Rotate")),
        (2304, DType.BF16, DType.BF16, ("Rotate",)),
        (96, DType.F16, DType.F16, ("Rotate",)),
        (48, DType.BF16, DType.BF16, ("Bias", "Rotate")),
        (128, DType.F32, DType.F32, ("Bias", "Rotate")),
        (64, DType.F16, DType.F32, ("Rotate",)),
        (24, DType.F32, DType.F16, ("Bias", "Rotate")),
    )
    for turn, (columns, dtype, out, chain) in enumerate(forms):
        problem = RotaryProblem(_GEMM[0], columns, _GEMM[1], dtype, out, chain, columns, 192, 8)
        configs = _configs(problem, arch)[turn % 3 :: 8]
        yield from (_instance(problem, config) for config in configs)


def _configs(problem: Product, arch: int) -> list[Sm90Config]:
    family = named("conv_sm90" if isinstance(problem, ConvProblem) else "gemm_sm90")
    found = family.candidates(problem, get(arch))
    return list(dict.fromkeys(config.instance() for config in found))


def _instance(problem: Product, config: Sm90Config) -> Instance:
    return Instance(config, problem.dtype, problem.out, problem.chain)


def _conv(
    dtype: DType, out: DType, chain: tuple[str, ...], columns: int, channels: int = _CONV[2]
) -> ConvProblem:
    batch, size, _ = _CONV
    return ConvProblem(
        batch,
        size,
        size,
        channels,
        columns,
        3,
        3,
        size,
        size,
        (1, 1, 1, 1),
        (1, 1),
        (1, 1),
        1,
        dtype,
        out,
        chain,
    )


def splits(instance: Instance) -> list[int]:
    """Numbers of blocks that may share a tile of this kernel."""
    assert isinstance(instance.config, Sm90Config)
    return sm90.splits(instance.config, instance, get(instance.config.arch))
