"""The cases of attention for the GPU tests: forms of masks x sizes of heads x lengths x types x
answers for queries without keys x orders of operands, so that each two of them meet, and the kernel
instances that compute them. Windows of images, masks with a period, and few queries of long keys,
which blocks divide, are cases of their own.

A case of size i and length j has form i + j, in turn. An instance serves all lengths of its size,
type and kind of mask; it was chosen for one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxbolt.archs import Capability, get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import CODES, VALUES, DType
from onnxbolt.epilogues import QUANTIZE
from onnxbolt.families import FAMILIES, Family, named
from onnxbolt.families.attention import Attention, AttentionConfig, feasible
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention.found import Band, Masked, Masking
from onnxbolt.problems import AttentionProblem
from tests.ops.attention_cases import NO_BAND, Case

SIZES = (16, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)
LENGTHS = (1, 7, 40, 49, 77, 128, 197, 257, 384, 512, 1000, 1500, 4096)
CHOSEN_FOR = (197, 512, 77, 1000, 384, 128)  # lengths for which instances are chosen, in turn
SHORT = 512  # longer sequences have fewer heads and batches
ORDERS = ("rows", "packed", "by heads", "mixed", "interleaved", "keys with values")
SAME_LENGTH = ("packed", "interleaved")  # orders in which there are as many keys as queries


@dataclass(frozen=True)
class Form:
    """A form of masks; `axes` are those of batch, heads, queries and keys (b, h, s, t) along which
    values differ. With a `period` the mask has so many batches. With `windows` the batches are
    those of images; other forms with a period have `length` positions."""

    name: str
    masking: Masking = Masking.NONE
    axes: str = ""
    band: Band = NO_BAND
    windows: Windows | None = None
    period: int = 0
    length: int = 0

    def shape(self, case: Case) -> tuple[int, ...]:
        """The shape of the mask for a case's sizes."""
        sizes = {"b": case.period or case.batch, "h": case.heads, "s": case.queries, "t": case.keys}
        shape = tuple(size if axis in self.axes else 1 for axis, size in sizes.items())
        return shape if self.masking is not Masking.NONE else ()


FORMS = (
    Form("none"),
    Form("causal", band=Band(None, 0, at_end=True)),
    Form("key padding", Masking.KEPT, "bt"),
    Form("bias", Masking.ADDED, "hst"),
    Form("window", band=Band(-70, 33)),
    Form("added padding", Masking.ADDED, "bt"),
    Form("blocks", Masking.DROPPED, "bst"),
    Form("plane", Masking.KEPT, "st"),
    Form("causal with key padding", Masking.KEPT, "bt", Band(None, 0)),
)
_TOGETHER = 3  # neighbouring forms have the same type, so that fewer kernels serve them
PERIODIC = (
    Form("windows", windows=Windows(14, 28, 7, 7)),
    Form("windows with a bias", Masking.ADDED, "hst", windows=Windows(14, 14, 7, 7, 3, 3)),
    Form("shifted windows", Masking.ADDED, "bhst", windows=Windows(14, 28, 7, 7, 3, 4), period=8),
    Form("windows of regions", Masking.KEPT, "bst", windows=Windows(12, 18, 6, 9, 4, 2), period=4),
    Form("large windows", Masking.DROPPED, "bst", windows=Windows(24, 24, 12, 12, 6, 5), period=4),
    Form("a period", Masking.ADDED, "bhst", period=3, length=77),
    Form("a period of booleans", Masking.KEPT, "bt", period=2, length=40),
)
PERIODIC_SIZES = (16, 32, 40, 64, 128)
PERIODIC_ORDERS = ("rows", "packed", "keys with values", "interleaved")
_TURNS = 2  # images, or how often a mask begins
# keys that blocks divide: sizes, queries, keys, and blocks; fewer keys leave parts without any
DIVIDED_SIZES = (32, 64, 128, 16, 256)
# sizes of heads whose results are codes, and how many kernels each has
CODED_SIZES, _CODED = (16, 32, 64, 80, 96, 128, 160, 256), 2
_QUERIES, _KEYS, _SPLITS = (100, 1, 33, 7), (850, 4096, 77, 1500, 1000), (4, 8, 2)
_FEW_KEYS = 7
_CODED_KEYS = 150  # kernels with results of codes are chosen for at least so many keys


def cases(types: Sequence[DType], size: int) -> Iterator[tuple[Form, Case]]:
    """A case of each length for heads of one size, in each of some types."""
    row = SIZES.index(size)
    for column, length in enumerate(LENGTHS):
        form = FORMS[(row + column) % len(FORMS)]
        yield form, _case(form, _type(types, row, form), size, length, column)


def periodic(types: Sequence[DType], size: int) -> Iterator[tuple[Form, Case]]:
    """A case of each form of PERIODIC for heads of one size."""
    row = PERIODIC_SIZES.index(size)
    for turn, form in enumerate(PERIODIC, row):
        dtype = types[turn % len(types)]
        length = form.windows.positions if form.windows else form.length
        modes = list(Masked) if form.masking is not Masking.NONE else [Masked.PLAIN]
        case = Case(
            order=PERIODIC_ORDERS[turn % len(PERIODIC_ORDERS)],
            batch=_TURNS * (form.windows.count if form.windows else form.period),
            heads=2,
            key_heads=2,
            queries=length,
            keys=length,
            size=size,
            value_size=size,
            scale=1.5 * size**-0.5,
            masking=form.masking,
            mask_type=mask_type(dtype, size),
            masked=modes[(row + turn // len(modes)) % len(modes)],
            dtype=dtype,
            windows=form.windows,
            image_axes=1,
            period=form.period,
        )
        yield form, replace(case, mask_shape=form.shape(case))


def divided(types: Sequence[DType], size: int) -> Iterator[tuple[Form, Case]]:
    """A case of each form of FORMS with few queries for heads of one size."""
    row = DIVIDED_SIZES.index(size)
    for turn, form in enumerate(FORMS, 2 * row):
        dtype, modes = types[turn % len(types)], list(Masked)
        case = Case(
            order=("rows", "by heads")[turn % 2],
            batch=1 + turn % 2,
            heads=2,
            key_heads=1 + turn // 2 % 2,
            queries=_QUERIES[(row + turn) % len(_QUERIES)],
            keys=_KEYS[turn % len(_KEYS)],
            size=size,
            value_size=size,
            scale=1.5 * size**-0.5,
            masking=form.masking,
            mask_type=mask_type(dtype, size),
            masked=modes[turn % len(modes)] if form.name != "none" else Masked.PLAIN,
            band=form.band,
            dtype=dtype,
        )
        yield form, replace(case, mask_shape=form.shape(case))


def coded(form: Form, dtype: DType, size: int, turn: int) -> Iterator[Case]:
    """Cases of some lengths, in turn, whose results are codes."""
    for column in range(turn % _TURNS, len(LENGTHS), _TURNS):
        yield replace(_case(form, dtype, size, LENGTHS[column], column), value_size=size)


def _type(types: Sequence[DType], row: int, form: Form) -> DType:
    return types[(row + FORMS.index(form) // _TOGETHER) % len(types)]


def _case(form: Form, dtype: DType, size: int, length: int, column: int) -> Case:
    """Orders, groups, modes of masked rows and lengths of queries change with size and column."""
    row = SIZES.index(size)
    turn, order = 3 * row + column, ORDERS[(row - column) % len(ORDERS)]
    batch, heads = (2, 4) if length <= SHORT else (1, 2)
    grouped = turn % 3 == 1 and order != "interleaved"
    other = LENGTHS[(turn * 5 + 3) % len(LENGTHS)]
    crossed = order not in SAME_LENGTH and turn % 4 == 2 and max(other, length) <= 1500
    modes = list(Masked) if form.masking is not Masking.NONE or form.band else [Masked.PLAIN]
    case = Case(
        order=order,
        batch=batch,
        heads=heads,
        key_heads=heads // 2 if grouped else heads,
        queries=other if crossed else length,
        keys=length,
        size=size,
        value_size=size // 16 * 8 if order in ("rows", "by heads") and turn % 5 == 0 else size,
        batch_of_keys=1 if order == "by heads" and turn % 2 == 0 else 0,
        scale=1.5 * size**-0.5,
        masking=form.masking,
        mask_type=mask_type(dtype, size),
        masked=modes[(column + (row + column) // 3) % len(modes)],
        band=form.band,
        dtype=dtype,
    )
    return replace(case, mask_shape=form.shape(case))


def mask_type(dtype: DType, size: int) -> DType:
    """The type of masks that are added: the operands', or float32."""
    return dtype if SIZES.index(size) % 2 else DType.F32


# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A kernel, and the cases that it computes, with the names of their forms."""

    instance: Instance
    cases: tuple[tuple[str, Case], ...]


@functools.cache
def served(arch: int) -> tuple[Served, ...]:
    """The kernels of all families of attention, each with its cases."""
    found = dict[Instance, list[tuple[str, Case]]]()
    for family in FAMILIES.values():
        if AttentionProblem in family.problems:
            cases = (
                *_plain(family, arch),
                *_periodic(family, arch),
                *_divided(family, arch),
                *_coded(family, arch),
            )
            for instance, form, case in cases:
                found.setdefault(instance, []).append((form, case))
    return tuple(Served(instance, tuple(cases)) for instance, cases in found.items())


def is_resident(each: Served) -> bool:
    """True if a block of the kernel may take several batches."""
    config = each.instance.config
    return isinstance(config, AttentionConfig) and config.resident


def instances(arch: int) -> list[Instance]:
    """The kernels alone."""
    return [each.instance for each in served(arch)]


def _plain(family: Family[Any], arch: int) -> Iterator[tuple[Instance, str, Case]]:
    """The cases of heads of all sizes, in the types and forms that the family serves: an SM of
    sm_75 has no room for the largest heads with every mask."""
    for row, size in enumerate(SIZES):
        types = [t for t in VALUES if _configs(family, arch, _chosen_for(FORMS[0], t, size))]
        chosen: dict[str, Instance] = {}
        for turn, form in enumerate(FORMS if types else ()):
            dtype = _type(types, row, form)
            configs = _configs(family, arch, _chosen_for(form, dtype, size))
            offered = [Instance(config, dtype, dtype) for config in configs]
            shared = [instance for instance in chosen.values() if instance in offered]
            if offered:
                chosen[form.name] = (shared or offered[(row + 3 * turn) % len(offered) :])[0]
        for form, case in cases(types, size) if types else ():
            if form.name in chosen:
                yield chosen[form.name], form.name, case


def _periodic(family: Family[Any], arch: int) -> Iterator[tuple[Instance, str, Case]]:
    """The cases of windows and of masks with a period, if the family serves them."""
    for row, size in enumerate(PERIODIC_SIZES):
        plain = next(case for _, case in periodic([DType.F16], size))
        types = [t for t in VALUES if _configs(family, arch, replace(plain, dtype=t))]
        for turn, (form, case) in enumerate(periodic(types, size) if types else ()):
            configs = _configs(family, arch, case)
            yield (
                Instance(configs[(row + 5 * turn) % len(configs)], case.dtype, case.dtype),
                (form.name),
                case,
            )


def _divided(family: Family[Any], arch: int) -> Iterator[tuple[Instance, str, Case]]:
    """The cases of few queries with kernels whose blocks divide the keys, if there are such."""
    if family is not named("attention") or not get(arch).has(Capability.CLUSTERS):
        return
    types = [dtype for dtype in VALUES if get(arch).supports(dtype)]
    for row, size in enumerate(DIVIDED_SIZES):
        for turn, (form, case) in enumerate(divided(types, size)):
            splits = _SPLITS[(row + turn) % len(_SPLITS)]
            found = feasible(problem(case), get(arch), _SPLITS)
            if not found:  # TF32 with large heads takes too many registers
                continue
            configs = [config for config in found if config.splits == splits] or found
            instance = Instance(configs[(row + 5 * turn) % len(configs)], case.dtype, case.dtype)
            fewer = replace(case, keys=_FEW_KEYS)
            for each in (case, replace(fewer, mask_shape=form.shape(fewer))):
                yield instance, f"{form.name}, divided", each


def _coded(family: Family[Any], arch: int) -> Iterator[tuple[Instance, str, Case]]:
    """The cases of results that are codes, if the family makes such: masks, types and codes in
    turn."""
    if not family.codes or not family.runs_on(get(arch)):
        return
    for turn, size in enumerate(size for size in CODED_SIZES for _ in range(_CODED)):
        form, dtype = FORMS[turn % len(FORMS)], (DType.F16, DType.BF16)[turn // 2 % 2]
        code = CODES[turn % len(CODES)]
        found = list(coded(form, dtype, size, turn))
        chosen = problem(next(case for case in found if case.keys > _CODED_KEYS))
        chosen = replace(chosen, out=code, chain=(QUANTIZE[code],))
        configs = family.candidates(chosen, get(arch))
        config = configs[7 * turn % len(configs)].instance()
        for case in found:
            yield Instance(config, dtype, code, chosen.chain), f"{form.name}, codes", case


def _configs(family: Family[Any], arch: int, case: Case) -> list[Any]:
    """The candidates whose blocks do not divide keys."""
    asked = problem(case), get(arch)
    found = (
        family.fastest(*asked, (1,)) if isinstance(family, Attention) else family.candidates(*asked)
    )
    return [config.instance() for config in found]


def _chosen_for(form: Form, dtype: DType, size: int) -> Case:
    row = SIZES.index(size)
    # in this column operands are packed: sizes and lengths are equal
    return _case(form, dtype, size, CHOSEN_FOR[row % len(CHOSEN_FOR)], row - 1)


def problem(case: Case) -> AttentionProblem:
    """A case as the planner has it."""
    kind = [case.masking.value] if case.masking is not Masking.NONE else []
    added = [case.mask_type.value] if case.masking is Masking.ADDED else []
    return AttentionProblem(
        case.batch,
        case.heads,
        case.key_heads,
        case.queries,
        case.keys,
        case.size,
        case.value_size,
        case.dtype,
        case.dtype,
        (*kind, *added),
        case.mask_shape,
        tuple(view.order for view in (case.attention().q, case.attention().k, case.attention().v)),
        case.limits if case.band else (),
        case.windows.numbers if case.windows else (),
    )
