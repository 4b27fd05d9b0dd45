"""Kernel families: what a kernel's configuration is, which ones are worth trying for a problem, and
how long they take.

The registry lists the families by their numbers. Stages ask all families, or the family of a
configuration; they name none. The number of a family that is gone (27) is not given again, since
files may hold its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from onnxbolt import checks
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.families import row
from onnxbolt.families.attention import Attention
from onnxbolt.families.attention_sm90 import AttentionSm90
from onnxbolt.families.b2b_conv_2x import B2bConv2x
from onnxbolt.families.b2b_conv_sm90 import B2bConvSm90
from onnxbolt.families.b2b_gemm_2x import B2bGemm2x
from onnxbolt.families.b2b_gemm_sm90 import B2bGemmSm90
from onnxbolt.families.b2b_gemm_small import B2bGemmSmall
from onnxbolt.families.b2b_gemm_wide_sm90 import B2bGemmWideSm90
from onnxbolt.families.b2b_halo_sm90 import B2bHaloSm90
from onnxbolt.families.b2b_stem_sm90 import B2bStemSm90
from onnxbolt.families.b2b_stored_sm90 import B2bStoredSm90
from onnxbolt.families.base import Family, KernelConfig, Layers, Stem
from onnxbolt.families.conv3d_sm90 import Conv3dSm90
from onnxbolt.families.conv_2x import Conv2x
from onnxbolt.families.conv_sm90 import ConvSm90
from onnxbolt.families.conv_transpose_sm90 import ConvTransposeSm90
from onnxbolt.families.depthwise import Depthwise
from onnxbolt.families.elementwise import Elementwise
from onnxbolt.families.gemm_2x import Gemm2x
from onnxbolt.families.gemm_3x import Gemm3x
from onnxbolt.families.gemm_rows_sm90 import GemmRowsSm90
from onnxbolt.families.gemm_skinny import GemmSkinny
from onnxbolt.families.gemm_sm90 import GemmSm90
from onnxbolt.families.grid_sample import GridSample
from onnxbolt.families.group_norm import GroupNorm
from onnxbolt.families.halo_sm90 import HaloSm90
from onnxbolt.families.layout import Layout
from onnxbolt.families.norm import Norm
from onnxbolt.families.pixel_shuffle import PixelShuffle
from onnxbolt.families.pool import Pool
from onnxbolt.families.quantized_conv_sm90 import QuantizedConvSm90
from onnxbolt.families.quantized_depthwise import QuantizedDepthwise
from onnxbolt.families.quantized_gemm_sm90 import QuantizedGemmSm90
from onnxbolt.families.resize import Resize
from onnxbolt.families.squeeze_excite import SqueezeExcite
from onnxbolt.families.stem_sm90 import StemSm90
from onnxbolt.problems import (
    Problem,
    QuantizedConvProblem,
    QuantizedGemmProblem,
    QuantizeProblem,
    StemCodesProblem,
)
from onnxbolt.registry import EXTENSIONS_FROM, NotInstalledError, Registry

__all__ = [
    "FAMILIES",
    "Family",
    "KernelConfig",
    "Layers",
    "Stem",
    "candidates",
    "config_from",
    "named",
]


def _problem_types(solving: Iterable[Family[Any]]) -> dict[str, type[Problem]]:
    return {kind.__name__: kind for family in solving for kind in family.problems}


class _Families(Registry[int, Family[Any]]):
    """Kernel families by number; those of extensions begin at EXTENSIONS_FROM."""

    def add(self, entry: Family[Any], owner: str) -> None:
        if owner:
            checks.name("kernel family", entry.name)
            checks.integer(
                f"number of kernel family {entry.name}", entry.number, EXTENSIONS_FROM, row.LARGEST
            )
        for kind in entry.problems:
            if _problem_types(self.values()).get(kind.__name__, kind) is not kind:
                raise ValueError(
                    f"its kernel family {entry.name} solves a {kind.__name__}, which is also the"
                    " name of another class of problems: give the class another"
                )
        super().add(entry, owner)


FAMILIES: Registry[int, Family[Any]] = _Families(
    "kernel family",
    (
        Gemm2x(),
        Gemm3x(),
        Conv2x(),
        Pool(),
        GemmSm90(),
        ConvSm90(),
        HaloSm90(),
        StemSm90(),
        Depthwise(),
        SqueezeExcite(),
        Elementwise(),
        Layout(),
        B2bGemmSm90(),
        B2bConvSm90(),
        B2bHaloSm90(),
        B2bStemSm90(),
        B2bGemmSmall(),
        B2bGemm2x(),
        Resize(),
        B2bGemmWideSm90(),
        B2bStoredSm90(),
        GemmRowsSm90(),
        B2bConv2x(),
        Norm(),
        Attention(),
        AttentionSm90(),
        GroupNorm(),
        GemmSkinny(),
        ConvTransposeSm90(),
        Conv3dSm90(),
        PixelShuffle(),
        GridSample(),
        QuantizedGemmSm90(),
        QuantizedConvSm90(),
        QuantizedDepthwise(),
    ),
    "number",
    "name",
    "type_name",
)


def config_from(numbers: Any) -> KernelConfig:
    """The configuration of a row of numbers. Raises ValueError for a row that no kernel could have,
    NotInstalledError where an extension's kernel could."""
    checked = row.checked(numbers)
    number = checked[row.SLOTS.index("family")]
    if number not in FAMILIES:
        what = f"configuration {list(checked)}: there is no kernel family {number}"
        if number >= EXTENSIONS_FROM:
            raise NotInstalledError(f"{what}; it belongs to an extension that is not installed")
        raise ValueError(what)
    return FAMILIES[number].decode(checked)


def named(name: str) -> Family[Any]:
    """The family with this name. Raises KeyError if there is none."""
    return {family.name: family for family in FAMILIES.values()}[name]


def of_kind(kind: str) -> frozenset[Family[Any]]:
    """The families whose kernels compute a kind of op."""
    return frozenset(family for family in FAMILIES.values() if kind in family.kinds)


def only(kind: str, arch: int) -> KernelConfig:
    """The configuration of a kind of op that one kernel computes, whatever the shape."""
    (family,) = of_kind(kind)
    config: KernelConfig = family.config(arch=arch)
    return config


def kinds() -> frozenset[str]:
    """Every kind of op that some family computes."""
    return frozenset(kind for family in FAMILIES.values() for kind in family.kinds)


def serves(kind: str) -> bool:
    """True if a kind of op that is not planned has kernels that have run on a GPU."""
    return any(family.measured for family in of_kind(kind))


def takes_codes(kind: str, dtype: DType, archs: Collection[int] = ()) -> bool:
    """True if a kind of op that is not planned has such kernels for codes of a type, and others
    multiply codes: without these, codes stay where they are. Where `archs` are given, each has
    instructions for the type: kernels that round within an epilogue need them."""
    served = any(
        family.measured and family.codes_measured and dtype in family.codes
        for family in of_kind(kind)
    )
    return served and multiplies_codes() and all(get(arch).supports(dtype) for arch in archs)


def multiplies_codes(archs: Collection[int] = ()) -> bool:
    """True if planning may choose kernels that multiply codes, on each of `archs` if there are
    some. Depthwise kernels alone do not pay for the form that they need."""
    products = {QuantizedConvProblem, QuantizedGemmProblem} & set(problem_types().values())
    able = [f for f in _planned() if products.intersection(f.problems) and not f.by_channel]
    return bool(able) and all(any(f.runs_on(get(arch)) for f in able) for arch in archs)


def makes_codes() -> bool:
    """True if planning may choose kernels that make codes of values."""
    return QuantizeProblem in problem_types().values()


def stem_makes_codes(stem: Stem, dtype: DType, archs: Collection[int] = ()) -> bool:
    """True if planning may choose kernels for this stem convolution that end with codes of a type,
    on each of `archs` if there are some."""
    able = [
        family
        for family in _planned()
        if StemCodesProblem in family.problems
        and StemCodesProblem not in family.unmeasured
        and family.reads_nchw(stem)
    ]
    if not able or dtype not in INTEGERS or stem.widths[-1] % dtype.alignment:
        return False
    return all(any(family.runs_on(get(arch)) for family in able) for arch in archs)


def convolves_by_channel() -> bool:
    """True if planning may choose kernels for depthwise convolutions of codes."""
    return any(family.by_channel for family in _planned())


def moves_values(problem: type[Problem]) -> bool:
    """True if planning may choose kernels for these products of codes that add values, and write
    their result as values, too, or normalizations that do the latter."""
    return any(family.moves_values and problem in family.problems for family in _planned())


def problem_types() -> dict[str, type[Problem]]:
    """The classes of problems that some family solves, by name."""
    unmeasured = {kind for family in _planned() for kind in family.unmeasured}
    found = _problem_types(_planned())
    return {name: kind for name, kind in found.items() if kind not in unmeasured}


def is_unmeasured(problem: Problem) -> bool:
    """True if only families solve the problem that planning does not choose yet."""
    name = type(problem).__name__
    return name in _problem_types(FAMILIES.values()) and name not in problem_types()


def _planned() -> Iterator[Family[Any]]:
    """The families that planning and the tuner may choose."""
    return (family for family in FAMILIES.values() if family.measured)


def candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every configuration worth trying, of all families, each for all m; none where no family
    solves the problem on `arch`."""
    return tuple(
        config for family in _solving(problem, arch) for config in family.candidates(problem, arch)
    )


def _solving(problem: Problem, arch: Arch) -> Iterator[Family[Any]]:
    """The families that solve problems of this type on `arch`."""
    for family in _planned():
        if isinstance(problem, family.problems) and family.runs_on(arch):
            yield family


def _running(archs: Collection[Arch]) -> Iterator[list[Family[Any]]]:
    """The families whose kernels run on each architecture."""
    for arch in archs:
        yield [family for family in FAMILIES.values() if family.runs_on(arch)]


def joins(layers: Layers) -> bool:
    """True if some family may have a kernel for these layers together."""
    return any(
        family.joins(layers) for family in FAMILIES.values() if layers.problem in family.problems
    )


def reads_nchw(stem: Stem, archs: Collection[Arch]) -> bool:
    """True if each architecture has a kernel that reads these convolutions' x as NCHW."""
    running = _running(archs)
    return bool(archs) and all(any(f.reads_nchw(stem) for f in some) for some in running)


def reads_any_rows(dtype: DType, columns: int, archs: Collection[Arch] | None = None) -> bool:
    """True if each architecture, or some one where None are given, has a kernel for a GEMM whose
    rows of A have any length."""
    running = [list(FAMILIES.values())] if archs is None else list(_running(archs))
    return bool(running) and all(
        any(family.reads_any_rows(dtype, columns) for family in some) for some in running
    )


def most_mean_pixels() -> int:
    """The most pixels of an image that some family's epilogue can average."""
    return max(family.most_mean_pixels for family in FAMILIES.values())


def shortage(problem: Problem, arch: Arch) -> str | None:
    """The reason, for a report, why an SM has no room for several layers in one kernel; None if no
    family names one."""
    texts = (family.shortage(problem, arch) for family in _solving(problem, arch))
    return next((text for text in texts if text), None)
