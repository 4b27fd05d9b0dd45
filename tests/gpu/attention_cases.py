"""The cases of attention for the GPU tests: forms of masks x sizes of heads x lengths, so that each
two of them meet, and the kernel instances that compute them.

A case of size i and length j has form i + j, in turn. An instance serves all lengths of its size,
type and kind of mask; it was chosen for one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import FAMILIES, Family
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
    values differ."""

    name: str
    masking: Masking = Masking.NONE
    axes: str = ""
    band: Band = NO_BAND

    def shape(self, case: Case) -> tuple[int, ...]:
        """The shape of the mask for a case's sizes."""
        sizes = {"b": case.batch, "h": case.heads, "s": case.queries, "t": case.keys}
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


def cases(dtype: DType, size: int) -> Iterator[tuple[Form, Case]]:
    """A case of each length for heads of one size."""
    row = SIZES.index(size)
    for column, length in enumerate(LENGTHS):
        form, turn = FORMS[(row + column) % len(FORMS)], 3 * row + column
        yield form, _case(form, dtype, size, length, turn)


def _case(form: Form, dtype: DType, size: int, length: int, turn: int) -> Case:
    """Orders, groups, modes of masked rows and lengths of queries change with the turn."""
    order = ORDERS[turn % len(ORDERS)]
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
        masked=modes[turn // 2 % len(modes)],
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
            for row, size in enumerate(SIZES):
                for instance, form, case in _of_size(family, arch, row, size):
                    found.setdefault(instance, []).append((form, case))
    return tuple(Served(instance, tuple(cases)) for instance, cases in found.items())


def instances(arch: int) -> list[Instance]:
    """The kernels alone."""
    return [each.instance for each in served(arch)]


def _of_size(
    family: Family[Any], arch: int, row: int, size: int
) -> Iterator[tuple[Instance, str, Case]]:
    """The cases of heads of one size, in one of the types that the family serves."""
    types = [dtype for dtype in DType if _configs(family, arch, _chosen_for(FORMS[0], dtype, size))]
    if not types:
        return
    dtype = types[row % len(types)]
    chosen: dict[str, Any] = {}
    for turn, form in enumerate(FORMS):
        configs = _configs(family, arch, _chosen_for(form, dtype, size))
        shared = [config for config in chosen.values() if config in configs]
        chosen[form.name] = shared[0] if shared else configs[(row + 3 * turn) % len(configs)]
    for form, case in cases(dtype, size):
        yield Instance(chosen[form.name].instance(), dtype, dtype), form.name, case


def _configs(family: Family[Any], arch: int, case: Case) -> list[Any]:
    return [config.instance() for config in family.candidates(problem(case), get(arch))]


def _chosen_for(form: Form, dtype: DType, size: int) -> Case:
    length = CHOSEN_FOR[SIZES.index(size) % len(CHOSEN_FOR)]
    return _case(form, dtype, size, length, turn=1)  # sizes are equal


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
    )
