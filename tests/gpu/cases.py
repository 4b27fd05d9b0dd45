"""The cases of the GPU tests: kernel instances, and the problems that each of them solves.

Every activation once per family and type at full alignment; each residual, scale and cast form and
the alignments 4, 2, 1 with ReLU; the planner's tiles, clusters and walks in turn, so that each
is met by some of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator as Iterable
from dataclasses import dataclass
from typing import Any

from onnxbolt.archs import by_name, get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import CODES, INTEGERS, DType
from onnxbolt.epilogues import MEAN, PRODUCT
from onnxbolt.families import Family, gemm_3x, named
from onnxbolt.families.blocks.mma_sync import MmaConfig, Tile, Walk
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.elementwise import ElementwiseConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.families.grid_sample import GridSampleConfig
from onnxbolt.families.layout import LayoutConfig
from onnxbolt.families.pixel_shuffle import PixelShuffleConfig
from onnxbolt.families.pool import PoolConfig
from onnxbolt.families.resize import ResizeConfig
from onnxbolt.families.squeeze_excite import SqueezeExciteConfig
from onnxbolt.gpu import local_arch
from onnxbolt.problems import ConvProblem, GemmProblem
from onnxbolt.tune.tasks import instance_of
from tests.gpu import (
    attention_cases,
    chain_2x_cases,
    conv3d_cases,
    conv_chain_cases,
    conv_transpose_cases,
    gemm_rows_cases,
    gemm_skinny_cases,
    group_norm_cases,
    norm_cases,
    quantized_cases,
    sm90_cases,
    stored_chain_cases,
    wide_chain_cases,
)
from tests.gpu.planned import planned

TYPES = (DType.F16, DType.BF16, DType.F32)
# a number per parameter, in the order of onnxbolt/epilogues/
PARAMS: dict[str, tuple[float, ...]] = {
    "LeakyRelu": (0.1,),
    "Clip": (-0.4, 0.7),
    "HardSigmoid": (0.3, 0.45),
    "Elu": (1.3,),
}
# scales and zero points of steps between codes; fp8 has no zero points
PARAMS |= {
    f"{step}{dtype.name}": (scale, 0.0 if dtype is DType.E4M3 else zero)
    for dtype in CODES
    for step, scale, zero in (
        ("Decode", 0.04371, 3.0),
        ("Requantize", 0.00411, 1.0),
        ("MulCodes", 0.05113, -2.0),
        ("AddCodes", 0.02719, 5.0),
        ("Quantize", 0.03637, 4.0),
    )
}
ACTIVATIONS = (
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "GeluErf",
    "GeluTanh",
    "Silu",
    "QuickGelu",
    "HardSwish",
    "HardSigmoid",
    "Softplus",
    "Elu",
    "Mish",
)
FORMS: tuple[tuple[str, ...], ...] = (
    (),
    ("Add",),
    ("Bias", "Add", "Relu"),
    ("Bias", "Relu", "Add"),
    ("Bias", "Silu", "Mul"),
    ("Bias", "Add", "Mul", "Clip", "LeakyRelu"),
    ("Scale", "Bias", "Relu"),
    ("Bias", "Relu", "Scale", "Scale"),
    ("Bias", "Elu", "Add", "PRelu"),
)
ELEMENTWISE = (
    ("Scale", "Bias", "Relu"),
    ("Add", "Relu"),
    ("Bias", "Add", "Mul", "Clip", "LeakyRelu"),
    ("Softplus", "Scale", "PRelu"),
)
SQUEEZE_EXCITES = (
    ("Relu", "HardSigmoid"),
    ("Silu", "Sigmoid"),
    ("LeakyRelu", "Clip"),
    ("Relu", "HardSigmoid", "Add"),
    ("Relu", "Sigmoid", "Add", "LeakyRelu", "Mul"),
)
RESIZES: tuple[tuple[str, ...], ...] = (
    (),
    ("Add",),
    ("Bias", "Add", "Mul", "LeakyRelu"),
    ("Scale", "Relu"),
)
CASTS = (
    (DType.F16, DType.F32),
    (DType.F32, DType.F16),
    (DType.BF16, DType.F32),
    (DType.F16, DType.BF16),
)

# k and the columns of each layer
CHAINS = (
    (256, (64, 16)),
    (64, (128, 256)),
    (96, (32, 96)),
    (256, (256, 64)),
    (432, (256, 64, 16)),
    (16, (16, 16, 16, 16)),
    (128, (192, 192)),
    (429, (256, 64, 16)),
    (13, (64, 16)),
    (367, (128, 64)),
    (4, (32, 16, 8)),
)
SMALL_CHAINS = (
    (4, (1, 4)),
    (13, (16, 8, 1)),
    (64, (16, 16)),
    (30, (8, 3, 5, 16)),
    (1, (4, 2)),
    (16, (16, 12)),
)

# m, n, k of a warp tile, and stages; K for 2-byte types
TILES = (
    Tile(128, 64, 32, (64, 32), (3,)),
    Tile(128, 128, 32, (64, 64), (4,)),
    Tile(64, 64, 64, (32, 32), (5,)),
    Tile(64, 256, 32, (64, 64), (4,)),
    Tile(256, 128, 32, (64, 64), (3,)),
    Tile(32, 64, 64, (16, 32), (5,)),
    Tile(64, 128, 64, (32, 64), (3,)),
    Tile(128, 32, 64, (32, 32), (4,)),
    Tile(64, 16, 64, (16, 16), (5,)),
)
WALKS = (Walk.OPTIMIZED, Walk.ANALYTIC)
SWIZZLES = (1, 4, 8, 2)


@dataclass(frozen=True)
class GemmShape:
    """Extents of a GEMM; n and k in units of the kernel's alignment. `gap`: that many units lie
    between rows."""

    m: int
    n: int
    k: int
    gap: int = 0


@dataclass(frozen=True)
class ConvShape:
    """A convolution; c and k in units of the kernel's alignment, pads top, left, bottom, right."""

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    gap: int = 0


GEMMS = (
    GemmShape(1, 16, 8),
    GemmShape(127, 17, 9, gap=1),
    GemmShape(300, 8, 25),
    GemmShape(517, 41, 16, gap=3),
    GemmShape(64, 1, 1),
    GemmShape(3, 130, 33),
)
CONVS = (
    ConvShape(2, 15, 17, 2, 3, 3, 3, (1, 1, 1, 1)),
    ConvShape(1, 14, 13, 3, 2, 3, 3, (0, 0, 1, 1), strides=(2, 2), gap=1),
    ConvShape(3, 9, 11, 1, 5, 1, 1),
    ConvShape(1, 20, 13, 5, 1, 3, 3, (2, 2, 2, 2), dilations=(2, 2), gap=2),
    ConvShape(2, 8, 31, 2, 2, 1, 7, (0, 3, 0, 3)),
    ConvShape(1, 1, 33, 1, 1, 1, 5, (0, 4, 0, 1), strides=(1, 3)),
    ConvShape(2, 12, 10, 9, 17, 2, 3, (1, 0, 0, 2), strides=(1, 2), dilations=(3, 1)),
    ConvShape(1, 1, 1, 4, 4, 1, 1),
)
# convolutions that end in global average pooling: 1 to 64 pixels, batches that fill no tile, tails
# of channels
MEANS = (
    ConvShape(1, 7, 7, 3, 5, 1, 1),
    ConvShape(33, 7, 7, 8, 33, 1, 1, gap=2),
    ConvShape(1, 1, 1, 4, 1, 1, 1),
    ConvShape(33, 1, 1, 9, 17, 1, 1),
    ConvShape(5, 5, 5, 2, 40, 1, 1),
    ConvShape(4, 8, 8, 20, 24, 1, 1),
    ConvShape(33, 5, 5, 3, 9, 3, 3, (1, 1, 1, 1)),
    ConvShape(6, 8, 8, 8, 16, 3, 3, (1, 1, 1, 1), gap=1),
    ConvShape(3, 13, 13, 2, 7, 3, 3, (1, 0, 0, 1), strides=(2, 2)),
    ConvShape(2, 9, 3, 5, 3, 1, 1),
    ConvShape(130, 7, 7, 16, 32, 1, 1),
)
FIRST_LAYERS = (
    ConvShape(1, 37, 40, 1, 3, 7, 7, (3, 3, 3, 3), strides=(2, 2)),
    ConvShape(2, 12, 9, 1, 2, 3, 3, (1, 0, 2, 1)),
    ConvShape(2, 16, 16, 1, 4, 4, 4, strides=(4, 4), gap=1),
)
# stem convolutions: output channels, filter rows, columns and channels, strides; the
# types and chain
FIRST = (
    (64, (7, 7, 3), (2, 2), DType.F16, DType.F16, ("Bias", "Relu")),
    (64, (3, 3, 3), (1, 1), DType.BF16, DType.BF16, ("Bias", "Relu")),
    (48, (3, 3, 3), (2, 2), DType.F16, DType.F16, ("Scale", "Bias", "Silu")),
    (16, (3, 3, 3), (2, 2), DType.F16, DType.F16, ("Bias", "HardSwish")),
    (96, (11, 11, 3), (4, 4), DType.F16, DType.F16, ("Bias", "Relu")),
    (128, (4, 4, 3), (4, 4), DType.BF16, DType.F32, ("Bias",)),
    (8, (5, 3, 1), (1, 1), DType.F16, DType.F32, ("Bias", "Clip")),
    (24, (3, 3, 4), (1, 2), DType.BF16, DType.BF16, ("PRelu",)),
    (40, (1, 1, 2), (1, 1), DType.F16, DType.F16, ()),
)


def mma(dtype: DType, arch: int) -> tuple[int, int, int]:
    """The 2.x instruction of a type."""
    return (16, 8, 16) if arch >= 80 and dtype is not DType.F32 else (16, 8, 8)


def config_2x(
    family: Family[Any], arch: int, dtype: DType, turn: int, align: int | None = None
) -> MmaConfig:
    """The configuration of turn `turn` among tiles, swizzles and walks; small alignments
    take the smallest tiles."""
    align = align or dtype.alignment
    tile = TILES[turn % len(TILES)] if align == dtype.alignment else TILES[0]
    stages = 2 if arch < 80 or align * dtype.bytes < 4 else tile.stages[0]
    config: MmaConfig = family.config(
        arch=arch,
        tile=tile.threadblock(dtype),
        warp=tile.warp_shape(dtype),
        instruction=mma(dtype, arch),
        stages=stages,
        swizzle=SWIZZLES[turn % len(SWIZZLES)],
        access_k=align,
        access_n=align,
        **({"walk": WALKS[turn % 2]} if family is named("conv_2x") else {}),
    )
    return config


def config_3x(arch: int, dtype: DType, turn: int) -> Gemm3xConfig:
    """The configuration of turn `turn` among the planner's 3.x tiles and clusters."""
    choices = [(tile, cluster) for tile in gemm_3x.TILES for cluster in tile.clusters]
    tile, cluster = choices[turn % len(choices)]
    return Gemm3xConfig(
        arch=arch,
        tile=tile.threadblock(dtype),
        cluster=cluster,
        schedule=tile.schedule,
        access=dtype.alignment,
    )


def gate_of_codes(dtype: DType) -> tuple[str, ...]:
    """The product with the gate of squeeze-and-excitation."""
    return (f"Decode{dtype.name}", f"MulCodes{dtype.name}", f"Quantize{dtype.name}")


def elementwise_of_codes(dtype: DType) -> list[tuple[str, ...]]:
    """HardSwish as quantized networks have it, a sum, and an activation by itself."""
    name = dtype.name
    inner = (
        ("HardSigmoid", f"Requantize{name}", f"MulCodes{name}"),
        (f"AddCodes{name}", "Relu"),
        ("Sigmoid",),
    )
    return [(f"Decode{name}", *steps, f"Quantize{name}") for steps in inner]


def instances(arch: int) -> list[Instance]:
    """Every kernel that the tests of `arch` (80 or 90; 75 for fp16 alone) need, each once."""
    types = TYPES if arch >= 80 else (DType.F16,)
    found = [
        *_full_alignment(arch, types),
        *_small_alignments(arch, types),
        *_rotated(arch, types),
        *_fixed_channels(arch, types),
    ]
    found += [
        Instance(PoolConfig(arch=arch), dtype, out)
        for dtype in types
        for out in dict.fromkeys((dtype, DType.F32))
    ]
    found += [
        Instance(config(arch=arch), dtype, dtype)
        for config in (PoolConfig, ResizeConfig, LayoutConfig)
        for dtype in INTEGERS
    ]
    found += [Instance(PoolConfig(arch=arch), dtype, DType.F32) for dtype in INTEGERS]
    found += [
        Instance(ResizeConfig(arch=arch), dtype, dtype, gate_of_codes(dtype)) for dtype in INTEGERS
    ]
    found += [
        Instance(ElementwiseConfig(arch=arch), dtype, dtype, chain)
        for dtype in types
        for chain in ELEMENTWISE
    ]
    found += [
        Instance(ElementwiseConfig(arch=arch), dtype, dtype, chain)
        for dtype in CODES
        for chain in elementwise_of_codes(dtype)
    ]
    found += [
        Instance(ElementwiseConfig(arch=arch), *pair, chain)
        for dtype, code in itertools.product(types, CODES)
        for pair, chain in (
            ((dtype, code), (f"Quantize{code.name}",)),
            ((code, dtype), (f"Decode{code.name}",)),
        )
    ]
    found += images(arch, types)
    found += [instance_of(problem, config) for problem, config in planned(arch)]
    found += [
        Instance(LayoutConfig(arch=arch), dtype, out)
        for dtype, out in itertools.product(types, types)
    ]
    found += [
        Instance(SqueezeExciteConfig(arch=arch), dtype, dtype, chain)
        for dtype in types
        for chain in SQUEEZE_EXCITES
    ]
    found += attention_cases.instances(arch)
    found += norm_cases.instances(arch, types)
    found += conv_transpose_cases.instances(arch, types)
    found += conv3d_cases.instances(arch, types)
    found += group_norm_cases.instances(arch, types)
    found += quantized_cases.instances(arch)
    found += quantized_cases.by_channel(arch)
    found += _first_convolutions(arch)
    found += [
        *_chains(arch),
        *_small_chains(arch, types),
        *conv_chain_cases.instances(arch, ACTIVATIONS),
    ]
    found += chain_2x_cases.instances(arch, ACTIVATIONS, frozenset(PARAMS))
    found += chain_2x_cases.convolutions(arch, ACTIVATIONS, frozenset(PARAMS))
    found += stored_chain_cases.instances(arch, ACTIVATIONS)
    found += wide_chain_cases.instances(arch, ACTIVATIONS)
    found += sm90_cases.instances(arch, _forms(types))
    found += gemm_rows_cases.instances(arch, _forms(types))
    found += gemm_skinny_cases.instances(arch, types, _forms(types))
    return list(dict.fromkeys(found))


def images(arch: int, types: tuple[DType, ...]) -> list[Instance]:
    """Kernels that move or sample pixels of these types."""
    resizes = [
        Instance(ResizeConfig(arch=arch), dtype, dtype, chain)
        for dtype in types
        for chain in RESIZES
    ]
    shuffles = [
        Instance(PixelShuffleConfig(arch=arch), dtype, out, chain)
        for dtype in types
        for out, chain in (
            (dtype, ()),
            (dtype, ("Bias", "Add", "LeakyRelu")),
            (DType.F32, ("Relu",)),
        )
    ]
    samples = [
        Instance(GridSampleConfig(arch=arch), dtype, out)
        for dtype in types
        for out in dict.fromkeys((dtype, DType.F32))
    ]
    return [*resizes, *shuffles, *samples]


def _chains(arch: int) -> Iterable[Instance]:
    """Several GEMMs: every activation, every layout of shared memory and number of consumers
    that the planner has for these widths."""
    turns = itertools.count()
    residuals = itertools.cycle(((), ("Add",), (), ("Mul", "Add"), ()))
    for activation, (k, widths), residual in zip(
        ACTIVATIONS * 2, itertools.cycle(CHAINS), residuals, strict=False
    ):
        chain = (*_layers(activation, len(widths)), *residual)
        for dtype, out in ((DType.F16, DType.F16), (DType.BF16, DType.F32)):
            problem = GemmProblem(1, widths[-1], k, dtype, out, chain, widths[:-1])
            configs = named("b2b_gemm_sm90").candidates(problem, get(arch))
            if configs:
                yield Instance(configs[next(turns) % len(configs)].instance(), dtype, out, chain)


def _small_chains(arch: int, types: tuple[DType, ...]) -> Iterable[Instance]:
    """Every activation, every type of result, and residuals."""
    turns = itertools.cycle(
        [(dtype, out) for dtype in types for out in dict.fromkeys((dtype, DType.F32))]
    )
    residuals = itertools.cycle(((), (), ("Add",), ("Mul", "Add")))
    for activation, (k, widths), residual in zip(
        ACTIVATIONS * 2, itertools.cycle(SMALL_CHAINS), residuals, strict=False
    ):
        dtype, out = next(turns)
        chain = (*_layers(activation, len(widths)), *residual)
        for config in named("b2b_gemm_small").candidates(
            GemmProblem(1, widths[-1], k, dtype, out, chain, widths[:-1]), get(arch)
        ):
            yield Instance(config.instance(), dtype, out, chain)


def _layers(activation: str, count: int) -> tuple[str, ...]:
    """A chain of as many products, an activation's parameters but once, since a kernel has few."""
    steps = ("Bias", activation)
    others = ("Scale", "Relu") if activation in PARAMS else steps
    return (*steps, *(step for _ in range(count - 1) for step in (PRODUCT, *others)))


def _first_convolutions(arch: int) -> Iterable[Instance]:
    """The candidates of the planner in turn."""
    for turn, (k, (r, s, c), strides, dtype, out, chain) in enumerate(FIRST):
        problem = ConvProblem(
            2,
            32,
            32,
            c,
            k,
            r,
            s,
            32,
            32,
            (0, 0, 0, 0),
            strides,
            (1, 1),
            1,
            dtype,
            out,
            chain,
            nchw=True,
        )
        configs = named("stem_sm90").candidates(problem, get(arch))
        if configs:
            yield Instance(configs[turn % len(configs)].instance(), dtype, out, chain)


def _forms(types: tuple[DType, ...]) -> list[tuple[DType, DType, tuple[str, ...]]]:
    """Element, output and chain of a family's kernels."""
    forms: list[tuple[DType, DType, tuple[str, ...]]]
    forms = [(dtype, dtype, ("Bias", activation)) for dtype in types for activation in ACTIVATIONS]
    forms += [(DType.F16, DType.F16, chain) for chain in FORMS] + [(types[-1], types[-1], FORMS[5])]
    return forms + [(dtype, out, ("Bias", "Relu")) for dtype, out in CASTS if dtype in types]


def _full_alignment(arch: int, types: tuple[DType, ...]) -> Iterable[Instance]:
    families = [named("gemm_2x"), named("conv_2x")] + ([named("gemm_3x")] if arch == 90 else [])
    for family, turns in ((family, itertools.count()) for family in families):
        for dtype, out, chain in _forms(types):
            turn = next(turns)
            config = (
                config_3x(arch, dtype, turn)
                if family is named("gemm_3x")
                else config_2x(family, arch, dtype, turn)
            )
            yield Instance(config, dtype, out, chain)


def _small_alignments(arch: int, types: tuple[DType, ...]) -> Iterable[Instance]:
    for family in (named("gemm_2x"), named("conv_2x")):
        for turn, (dtype, align) in enumerate(itertools.product(types, (4, 2, 1))):
            if align < dtype.alignment:
                yield Instance(
                    config_2x(family, arch, dtype, turn, align),
                    dtype,
                    dtype,
                    ("Bias", "Add", "Relu"),
                )


def _rotated(arch: int, types: tuple[DType, ...]) -> Iterable[Instance]:
    """Pairs of columns rotated by a table, also where an access has fewer than 8 columns."""
    for turn, (dtype, align) in enumerate(itertools.product(types, (8, 4, 2))):
        if align <= dtype.alignment:
            config = config_2x(named("gemm_2x"), arch, dtype, turn, align)
            chain = ("Bias", "Rotate") if turn % 2 else ("Rotate",)
            yield Instance(config, dtype, dtype, chain)


def _fixed_channels(arch: int, types: tuple[DType, ...]) -> Iterable[Instance]:
    for dtype, channels in itertools.product(types, (4, 8)):
        if channels <= dtype.alignment:
            config = config_2x(named("conv_2x"), arch, dtype, 0)
            packed: dict[str, Any] = {"access_k": channels, "walk": Walk.FIXED_CHANNELS}
            config = dataclasses.replace(config, **packed)
            yield Instance(config, dtype, dtype, ("Bias", "Relu"))


def convolutions(instance: Instance) -> tuple[ConvShape, ...]:
    """The convolutions that an instance can do."""
    if MEAN in instance.chain:
        return MEANS
    config = instance.config
    packed = isinstance(config, Conv2xConfig) and config.walk is Walk.FIXED_CHANNELS
    return FIRST_LAYERS if packed else CONVS


ARCH = by_name(local_arch() or "sm_90a").number  # without a GPU the tests are listed, not run
ALL = instances(ARCH)
