"""Normalizations of groups: which divisions among blocks are tried."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.families import config_from, named
from onnxbolt.families.group_norm import GroupNormConfig
from onnxbolt.problems import GroupNormProblem

FAMILY = named("group_norm")
NORM = GroupNormProblem(2, 4096, 320, 32, DType.F16, DType.F16, ("Silu",))
CONFIG = GroupNormConfig(arch=90, threads=256, part=40, blocks=8, access=8, resident=True)
SIZES = (
    (1, 64, 1280, 32),
    (8, 128 * 128, 320, 32),
    (1, 512 * 512, 128, 32),
    (2, 4096, 320, 320),
    (4, 49, 768, 1),
    (1, 1, 30, 5),
    (3, 100, 17, 17),
)


@pytest.mark.parametrize("arch", [get(75), get(80), get(90)], ids=lambda arch: arch.name)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
def test_divisions_fit_any_size(size: tuple[int, int, int, int], dtype: DType, arch: Arch) -> None:
    problem = GroupNormProblem(*size, dtype, dtype)
    found = FAMILY.candidates(problem, arch)
    assert 0 < len(found) <= 160
    assert len(set(found)) == len(found)
    assert len({config.instance() for config in found}) == 4  # kernels to compile
    for config in found:
        assert problem.c % config.access == 0
        assert config.access * dtype.bytes <= 16
        whole = math.lcm(problem.group, config.access)
        assert config.part == problem.c or config.part % whole == 0
        assert 1 <= config.blocks <= problem.p
        assert not config.resident or config.blocks in ((1, 2, 4, 8) if arch is get(90) else (1,))
        assert config_from(config.row()) == config
        assert FAMILY.predicted_us(problem, config, arch) > 0


def test_a_group_that_shared_memory_cannot_count_has_no_kernel() -> None:
    problem = GroupNormProblem(1, 64, 65536, 1, DType.F16, DType.F16)
    assert all(FAMILY.candidates(problem, arch) == () for arch in ARCHS.values())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"threads": 32}, "threads"),
        ({"threads": 100}, "threads"),
        ({"part": 0}, "part"),
        ({"blocks": 0}, "blocks"),
        ({"blocks": 16}, "blocks"),
        ({"access": 3}, "access"),
    ],
)
def test_rows_that_no_kernel_has_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"no kernel of group_norm has such {named}"):
        config_from(dataclasses.replace(CONFIG, **change).row())


def test_what_stays_in_shared_memory_is_predicted_to_be_faster() -> None:
    arch = get(90)
    problem = dataclasses.replace(NORM, n=8)
    kept = FAMILY.predicted_us(problem, CONFIG, arch)
    again = dataclasses.replace(CONFIG, resident=False, blocks=32)
    assert kept < FAMILY.predicted_us(problem, again, arch)
    # a part of 20 MB
    large = GroupNormProblem(1, 262144, 320, 32, DType.F16, DType.F16)
    assert FAMILY.predicted_us(large, again, arch) < FAMILY.predicted_us(large, CONFIG, arch)
