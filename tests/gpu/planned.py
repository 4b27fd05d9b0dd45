"""The planner's kernels for problems of odd shapes, of the families that only the planner
configures: our own for sm_90a, depthwise, and CUTLASS's implicit GEMM with groups.

One tile, fewer tiles than SMs, tails in every dimension, strides, dilations, uneven padding; each
problem with one kernel of each family that takes it, in turns, so that tiles and schedules are met
by some of them.
"""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, STORE
from onnxbolt.families import KernelConfig, candidates, named
from onnxbolt.integers import round_up
from onnxbolt.problems import ConvProblem, GemmProblem, Problem

FAMILIES = (
    named("gemm_sm90"),
    named("conv_sm90"),
    named("halo_sm90"),
    named("stem_sm90"),
    named("depthwise"),
    named("gemm_rows_sm90"),
)
_F16, _F32 = DType.F16, DType.F32


def _gemm(m: int, n: int, k: int, *chain: str, dtype: DType = _F16) -> GemmProblem:
    return GemmProblem(m, n, k, dtype, dtype, chain)


def _conv(
    n: int,
    h: int,
    w: int,
    c: int,
    k: int,
    window: tuple[int, int],
    pads: tuple[int, int, int, int],
    *chain: str,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    nchw: bool = False,
    out: DType | None = None,
) -> ConvProblem:
    """`out`: y is written with its channels first, in this type."""
    (r, s), (top, left, bottom, right) = window, pads
    p = (h + top + bottom - dilations[0] * (r - 1) - 1) // strides[0] + 1
    q = (w + left + right - dilations[1] * (s - 1) - 1) // strides[1] + 1
    return ConvProblem(
        n,
        h,
        w,
        c,
        k,
        r,
        s,
        p,
        q,
        pads,
        strides,
        dilations,
        groups,
        _F16,
        out or _F16,
        chain,
        nchw,
        y_nchw=out is not None,
    )


def _convnext(c: int, side: int, dtype: DType, *chain: str) -> tuple[ConvProblem, ...]:
    """ConvNeXt's depthwise 7x7: of square images, and of narrow ones."""
    found = (
        _conv(2, height, width, c, c, (7, 7), (3, 3, 3, 3), *chain, groups=c)
        for height, width in ((side, side), (side + 2, 5))
    )
    return tuple(replace(conv, dtype=dtype, out=dtype) for conv in found)


def _both(conv: ConvProblem) -> ConvProblem:
    """With y in both forms, of which `conv` has the one with its channels first."""
    k = round_up(conv.k, conv.dtype.alignment)
    return replace(conv, k=k, chain=(*conv.chain, STORE), padding=k - conv.k, y_nchw=True)


_POINT, _SAME = (0, 0, 0, 0), (1, 1, 1, 1)
_BOTH = (
    _conv(1, 5, 7, 64, 1, (1, 1), _POINT, "Bias", out=_F32),
    _conv(3, 13, 11, 200, 3, (1, 1), _POINT, "Bias", "Relu"),
    _conv(2, 57, 113, 72, 255, (1, 1), _POINT, "Bias", "Sigmoid", out=_F32),
    _conv(1, 1, 1, 136, 5, (1, 1), _POINT, out=_F32),
    _conv(2, 7, 9, 64, 13, (3, 3), _SAME, "Bias", "Relu"),
    _conv(3, 33, 47, 64, 21, (3, 3), _SAME, "Bias", "Relu", out=_F32),
    _conv(9, 7, 7, 64, 20, (3, 3), _SAME, "Bias"),
    _conv(3, 21, 19, 64, 255, (3, 3), _SAME, "Bias", out=_F32),
    _conv(2, 29, 31, 48, 130, (3, 3), (0, 0, 1, 1), "Bias", "Relu", strides=(2, 2)),
    _conv(2, 20, 13, 40, 5, (3, 3), (2, 2, 2, 2), "Scale", "Bias", dilations=(2, 2), out=_F32),
    _conv(1, 1, 199, 32, 7, (1, 5), (0, 2, 0, 2), "Bias", out=DType.BF16),
    _conv(4, 64, 64, 64, 264, (3, 3), _SAME, "Bias", out=_F32),
    replace(_conv(2, 21, 19, 36, 255, (3, 3), _SAME, "Bias", "Relu", out=_F32), dtype=_F32),
    replace(_conv(2, 21, 19, 40, 3, (3, 3), _SAME, "Bias", out=DType.BF16), dtype=DType.BF16),
    _conv(2, 15, 17, 64, 100, (3, 3), _SAME, "Bias", "Add", "Relu", out=_F32),
    _conv(5, 14, 14, 256, 256, (1, 1), _POINT, "Bias", "Add"),
    _conv(8, 40, 40, 256, 256, (3, 3), _SAME, "Bias", "Silu", out=_F32),
)
PROBLEMS: tuple[Problem, ...] = (
    _gemm(1, 64, 64, "Bias"),
    _gemm(129, 72, 200, "Bias", "Relu"),
    _gemm(3001, 264, 136, "Bias", "Add", "Relu"),
    _gemm(500, 1000, 2048, "Bias", "GeluErf"),
    _gemm(257, 136, 520, "Bias", dtype=DType.BF16),
    _gemm(300, 68, 100, "Bias", dtype=DType.F32),
    _conv(1, 5, 7, 64, 64, (3, 3), (1, 1, 1, 1), "Bias", "Relu"),
    _conv(2, 15, 17, 48, 72, (3, 3), (1, 1, 1, 1), "Bias", "Add", "Relu"),
    _conv(1, 14, 13, 32, 40, (3, 3), (0, 0, 1, 1), "Bias", "Relu", strides=(2, 2)),
    _conv(2, 20, 13, 40, 64, (3, 3), (2, 2, 2, 2), "Bias", dilations=(2, 2)),
    _conv(2, 8, 31, 16, 16, (1, 7), (0, 3, 0, 3), "Bias"),
    _conv(3, 9, 11, 64, 264, (1, 1), (0, 0, 0, 0), "Bias", "Add", "Relu"),
    _conv(3, 9, 11, 72, 64, (1, 1), (0, 0, 0, 0), strides=(2, 2)),
    _conv(2, 56, 56, 64, 64, (3, 3), (1, 1, 1, 1), "Bias", "Relu"),
    _conv(3, 14, 14, 128, 136, (3, 3), (1, 1, 1, 1), "Bias", "Add", "Relu"),
    _conv(5, 7, 7, 512, 64, (3, 3), (1, 1, 1, 1), "Bias", "Relu"),
    _conv(1, 57, 113, 72, 136, (3, 3), (1, 1, 1, 1), "Bias", "Relu"),
    _conv(3, 40, 21, 64, 64, (5, 5), (2, 2, 2, 2), "Bias", "Relu"),
    _conv(2, 300, 1, 16, 24, (3, 1), (1, 0, 1, 0), "Bias", "Relu"),
    _conv(2, 57, 55, 48, 136, (3, 3), (0, 0, 1, 1), "Bias", "Relu", strides=(2, 2)),
    _conv(2, 37, 41, 3, 64, (7, 7), (3, 3, 3, 3), "Bias", "Relu", strides=(2, 2), nchw=True),
    _conv(1, 33, 20, 3, 48, (3, 3), (1, 1, 1, 1), "Bias", "HardSwish", strides=(2, 2), nchw=True),
    _conv(2, 15, 17, 72, 72, (3, 3), (1, 1, 1, 1), "Bias", "Relu", groups=72),
    _conv(1, 14, 13, 40, 40, (5, 5), (2, 2, 2, 2), "Bias", "HardSwish", strides=(2, 2), groups=40),
    _conv(1, 20, 13, 7, 7, (3, 2), (2, 1, 1, 0), "Bias", dilations=(2, 1), groups=7),
    _conv(1, 1, 1, 8, 8, (3, 3), (1, 1, 1, 1), "Bias", groups=8),
    _conv(3, 2, 3, 16, 16, (5, 5), (2, 2, 2, 2), "Bias", groups=16),
    _conv(1, 7, 7, 960, 960, (5, 5), (2, 2, 2, 2), "Bias", "Silu", "Mul", groups=960),
    _conv(2, 9, 30, 120, 120, (5, 5), (2, 2, 2, 2), "Bias", "Add", "Relu", groups=120),
    _conv(2, 15, 13, 96, 96, (7, 7), (3, 3, 3, 3), "Bias", groups=96),
    _conv(1, 33, 5, 13, 13, (3, 3), (1, 1, 1, 1), "Bias", "Relu", groups=13),
    _conv(2, 12, 10, 72, 72, (7, 7), (3, 3, 3, 3), "Bias", groups=72),
    _conv(2, 14, 13, 20, 20, (3, 3), (0, 0, 1, 1), "Bias", strides=(2, 2), groups=20),
    _conv(1, 1, 33, 24, 24, (1, 5), (0, 4, 0, 1), "Bias", strides=(1, 3), groups=24),
    _conv(2, 15, 17, 128, 128, (3, 3), (1, 1, 1, 1), "Bias", "Relu", groups=2),
    _conv(3, 9, 11, 96, 96, (3, 3), (1, 1, 1, 1), "Bias", "Add", "Relu", groups=4),
    _conv(1, 14, 13, 224, 224, (3, 3), (0, 0, 1, 1), "Bias", "Relu", strides=(2, 2), groups=2),
    _conv(3, 9, 11, 160, 320, (1, 1), (0, 0, 0, 0), "Bias", "Silu", "Mul", groups=4),
    _conv(2, 20, 13, 112, 112, (3, 3), (2, 2, 2, 2), "Bias", dilations=(2, 2), groups=2),
    _conv(1, 8, 31, 144, 288, (1, 7), (0, 3, 0, 3), "Scale", "Bias", "Relu", groups=2),
    _conv(5, 7, 7, 1024, 1024, (3, 3), (1, 1, 1, 1), "Bias", "Relu", groups=16),
    _conv(2, 29, 28, 512, 512, (3, 3), (1, 1, 1, 1), "Bias", "Add", "Relu", groups=4),
    _conv(2, 1, 199, 768, 768, (1, 128), (0, 64, 0, 63), "Bias", "GeluErf", groups=16),
    _conv(1, 5, 5, 40, 40, (3, 3), (1, 1, 1, 1), "Bias", "Relu", groups=5),
    _conv(1, 33, 20, 104, 208, (3, 3), (1, 1, 1, 1), groups=13),
    _conv(1, 5, 7, 264, 1, (1, 1), (0, 0, 0, 0), "Bias", out=_F32),
    _conv(3, 13, 11, 200, 2, (1, 1), (0, 0, 0, 0), "Bias", out=_F32),
    _conv(2, 57, 113, 72, 255, (1, 1), (0, 0, 0, 0), "Bias", "Sigmoid", out=_F16),
    _conv(1, 1, 1, 136, 3, (1, 1), (0, 0, 0, 0), out=_F32),
    _conv(2, 7, 9, 64, 1, (3, 3), (1, 1, 1, 1), "Bias", out=_F32),
    _conv(3, 33, 47, 64, 3, (3, 3), (1, 1, 1, 1), "Bias", "Tanh", out=_F32),
    _conv(9, 7, 7, 64, 20, (3, 3), (1, 1, 1, 1), "Bias", out=_F16),
    _conv(3, 21, 19, 64, 255, (3, 3), (1, 1, 1, 1), "Bias", out=_F32),
    _conv(2, 29, 31, 48, 130, (3, 3), (0, 0, 1, 1), "Bias", "Relu", strides=(2, 2), out=_F16),
    _conv(2, 20, 13, 40, 5, (3, 3), (2, 2, 2, 2), "Scale", "Bias", dilations=(2, 2), out=_F32),
    _conv(1, 1, 199, 32, 7, (1, 5), (0, 2, 0, 2), "Bias", out=DType.BF16),
    _conv(4, 64, 64, 64, 264, (3, 3), (1, 1, 1, 1), "Bias", out=_F32),
    replace(_conv(2, 21, 19, 36, 255, (3, 3), (1, 1, 1, 1), "Bias", "Relu", out=_F32), dtype=_F32),
    replace(_conv(2, 21, 19, 40, 3, (3, 3), (1, 1, 1, 1), "Bias", out=_F32), dtype=DType.BF16),
    _gemm(3001, 200, 429, "Bias", "Add", "Relu"),
    _gemm(130, 60, 13, "Bias", dtype=DType.BF16),
    _conv(9, 29, 31, 64, 72, (3, 3), (1, 1, 1, 1), "Scale", "Bias", "Add", "GeluErf", "Mul"),
    *map(_both, _BOTH),
    _conv(33, 7, 7, 160, 264, (1, 1), (0, 0, 0, 0), "Bias", "HardSwish", MEAN),
    _conv(5, 9, 9, 64, 136, (3, 3), (1, 1, 1, 1), "Bias", "Add", "Relu", MEAN, strides=(2, 2)),
    *_convnext(96, 56, _F16, "Bias"),
    *_convnext(768, 7, _F16, "Bias", "Add"),
    *_convnext(192, 28, DType.BF16, "Bias"),
    *_convnext(40, 15, DType.BF16),
    *_convnext(384, 14, _F32, "Bias"),
    *_convnext(100, 9, _F32, "Bias", "GeluErf"),
)


def planned(arch: int) -> list[tuple[Problem, KernelConfig]]:
    """Problems with kernels for them, on architecture 90, say."""
    found = []
    for turn, problem in enumerate(PROBLEMS):
        possible = candidates(problem, get(arch)) if problem.dtype in get(arch).flops else ()
        is_grouped = isinstance(problem, ConvProblem) and problem.groups > 1
        for family in (*FAMILIES, named("conv_2x")) if is_grouped else FAMILIES:
            configs = [config for config in possible if config.family is family]
            found += [(problem, configs[7 * turn % len(configs)])] if configs else []
    return found
