"""The cases of attention that the GPU tests have: each two kinds of choices meet, and the problems
of windows and of masks with a period are right for kernels that run on the host."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from onnxbolt.codegen.render import instance_name
from onnxbolt.families import Family, named
from onnxbolt.families.attention import AttentionConfig
from onnxbolt.integers import ceil_divide
from tests.custom_ops.host_attention import HostAttention, build
from tests.gpu import attentions
from tests.gpu.attention_cases import (
    DIVIDED_SIZES,
    FORMS,
    LENGTHS,
    PERIODIC,
    SIZES,
    Served,
    is_resident,
    served,
)
from tests.gpu.device import Attention
from tests.gpu.problems import BUILDERS, examples
from tests.ops.attention_cases import Case

ARCH = 90
ATTENTION, ATTENTION_SM90 = named("attention"), named("attention_sm90")
LIMITS = {"f16": 2e-3, "bf16": 1.5e-2, "f32": 2e-3}
_CHOICES: dict[str, Callable[[str, Case], Any]] = {
    "form": lambda form, case: form,
    "size": lambda form, case: case.size,
    "length": lambda form, case: case.keys,
    "type": lambda form, case: case.dtype,
    "answer without keys": lambda form, case: case.masked,
    "order": lambda form, case: case.order,
}


def _name(each: Served) -> str:
    return instance_name(each.instance)


def of(family: Family[Any], periodic: bool = False) -> list[tuple[str, Case]]:
    """The forms and cases of a family."""
    names = {form.name for form in (PERIODIC if periodic else FORMS)}
    return [
        (form, case)
        for each in served(ARCH)
        for form, case in each.cases
        if each.instance.config.family is family and form in names
    ]


@pytest.mark.parametrize("family", [ATTENTION, ATTENTION_SM90], ids=repr)
@pytest.mark.parametrize("pair", list(itertools.combinations(_CHOICES, 2)), ids=" and ".join)
def test_each_two_choices_meet(family: Family[Any], pair: tuple[str, str]) -> None:
    one, other = (_CHOICES[name] for name in pair)
    cases = of(family)
    if "answer without keys" in pair:  # a form that excludes no keys has one answer
        cases = [(form, case) for form, case in cases if form != "none"]
    met = {(one(*found), other(*found)) for found in cases}
    first, second = ({chosen[i] for chosen in met} for i in (0, 1))
    assert met == set(itertools.product(first, second))


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90])
def test_every_architecture_has_cases_of_every_size(arch: int) -> None:
    assert {case.size for each in served(arch) for _, case in each.cases} >= set(SIZES)


def test_the_choices_are_those_of_the_lists() -> None:
    for family, types in ((ATTENTION, 3), (ATTENTION_SM90, 2)):
        cases = of(family)
        assert {form for form, _ in cases} == {form.name for form in FORMS}
        assert {case.size for _, case in cases} == set(SIZES)
        assert {case.keys for _, case in cases} == set(LENGTHS)
        assert len({case.dtype for _, case in cases}) == types
        assert len({case.masked for _, case in cases}) == 3


def test_kernels_whose_blocks_divide_keys_meet_all_choices() -> None:
    found = [
        (config, form, case)
        for each in served(ARCH)
        if isinstance(config := each.instance.config, AttentionConfig) and config.splits > 1
        for form, case in each.cases
    ]
    assert {form for _, form, _ in found} == {f"{form.name}, divided" for form in FORMS}
    assert {config.splits for config, _, _ in found} == {2, 4, 8}
    assert {case.size for _, _, case in found} == set(DIVIDED_SIZES)
    assert len({case.dtype for _, _, case in found}) == 3
    assert len({case.masked for _, _, case in found}) == 3
    # some parts have no key
    assert any(case.keys <= config.keys for config, _, case in found)


def test_windows_and_masks_with_a_period_have_kernels_of_each_type() -> None:
    cases = of(ATTENTION, periodic=True)
    assert {form for form, _ in cases} == {form.name for form in PERIODIC}
    assert len({case.dtype for _, case in cases}) == 3
    assert len({case.masked for _, case in cases}) == 3
    assert not of(ATTENTION_SM90, periodic=True)


@pytest.mark.parametrize("each", [each for each in served(ARCH) if is_resident(each)], ids=_name)
def test_blocks_of_a_resident_kernel_take_several_batches(each: Served) -> None:
    config = each.instance.config
    assert isinstance(config, AttentionConfig)
    for _, case in each.cases:
        many = attentions.repeated(case)
        assert many.mask_shape[0] in (1, many.period)
        assert many.batch % case.batch == 0
        # Shape::kBlocksOfSm and Attention::run in custom_ops/families/attention/
        blocks_of_sm = (512 if config.rows == 16 else 256) // config.threads
        blocks_of_batch = many.heads * ceil_divide(many.queries, config.queries)
        assert many.batch >= 2 * 187 * blocks_of_sm // blocks_of_batch


@pytest.mark.parametrize("family", [ATTENTION, ATTENTION_SM90], ids=repr)
def test_tools_have_an_example_of_each_form(family: Family[Any]) -> None:
    kernels = [each.instance for each in served(ARCH) if each.instance.config.family is family]
    suffixes = {"", "-MASKED", "-BANDED", "-MASKED-BANDED"}
    if family is ATTENTION:
        suffixes |= {"-WINDOWS", "-MASKED-WINDOWS", "-MASKED-RESIDENT", "-MASKED-WINDOWS-RESIDENT"}
        suffixes |= {f"{form}-DIVIDED" for form in ("", "-MASKED", "-BANDED", "-MASKED-BANDED")}
    assert suffixes <= {form.removeprefix(family.name) for form in examples(kernels)}
    assert family in BUILDERS


# --- on the host ----------------------------------------------------------------------------------


class HostMemory:
    """In the place of tests/gpu/device.py's library: memory of the host."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def call(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)

    def device_allocate(self, pointer: Any, size: ctypes.c_size_t) -> None:
        room = ctypes.create_string_buffer(size.value + 256)
        pointer._obj.value = (ctypes.addressof(room) + 255) // 256 * 256
        self._held[pointer._obj.value] = room

    def device_free(self, pointer: ctypes.c_void_p) -> None:
        assert pointer.value is not None
        del self._held[pointer.value]

    def device_copy(self, to: Any, of: Any, size: ctypes.c_size_t) -> None:
        ctypes.memmove(to, of, size.value)


def _periodic() -> list[Served]:
    """The kernels of two sizes of heads."""
    return [
        each
        for each in served(ARCH)
        if any(form.name == found for form in PERIODIC for found, _ in each.cases)
        and all(case.size in (16, 40) for _, case in each.cases)
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostAttention:
    found = [each.instance for each in _periodic()]
    return build(found, tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("number", range(len(_periodic())))
def test_problems_of_windows_are_right(kernels: HostAttention, number: int) -> None:
    each = _periodic()[number]
    for form, case in each.cases:
        problem = attentions.problem(HostMemory(), case)  # type: ignore[arg-type]
        assert isinstance(problem.arguments, Attention)
        kernels.attend(number, problem.arguments)
        assert attentions.error(problem) <= LIMITS[case.dtype.value], f"{form}: {case}"
