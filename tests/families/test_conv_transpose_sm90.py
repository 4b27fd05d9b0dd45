"""Kernels of transposed convolutions that store pixels of phases: which there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt import families
from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import named, problem_types
from onnxbolt.families.conv_transpose_sm90 import ConvTransposeSm90Config, _taps_share
from onnxbolt.problems import ConvTranspose3dProblem, ConvTransposeProblem
from onnxbolt.registry import empty_caches
from tests.problems.test_conv_transpose import PROBLEM
from tests.support import planned

FAMILY = named("conv_transpose_sm90")


def _candidates(problem: ConvTransposeProblem = PROBLEM) -> tuple[ConvTransposeSm90Config, ...]:
    return tuple(FAMILY.candidates(problem, get(90)))


def test_it_runs_on_hopper_alone() -> None:
    assert [arch.number for arch in ARCHS.values() if FAMILY.runs_on(arch)] == [90]


def test_a_family_without_measurements_is_unknown_to_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert families.candidates(PROBLEM, get(90)) == _candidates() != ()
    monkeypatch.setattr(FAMILY, "measured", False)
    empty_caches()
    assert families.candidates(PROBLEM, get(90)) == ()
    assert "ConvTransposeProblem" not in problem_types()
    assert families.is_unmeasured(PROBLEM)
    monkeypatch.undo()
    empty_caches()


def test_products_are_not_swapped() -> None:
    assert not any(config.swapped for config in _candidates())


@pytest.mark.parametrize(
    ("k", "groups", "out"), [(20, 1, DType.F16), (24, 6, DType.F16), (12, 1, DType.F32)]
)
def test_pixels_are_whole_accesses(k: int, groups: int, out: DType) -> None:
    assert _candidates(replace(PROBLEM, k=k, groups=groups, out=out)) == ()


def test_tiles_have_one_phase_where_the_epilogue_reads_tensors() -> None:
    residual = replace(PROBLEM, k=96, chain=("Bias", "Add", "Relu"))
    assert {96 % config.columns for config in _candidates(residual)} == {0}
    assert any(96 % config.columns for config in _candidates(replace(PROBLEM, k=96)))


def test_tiles_have_one_group() -> None:
    assert all(
        (4 * 48) % config.columns == 0
        for config in _candidates(replace(PROBLEM, c=128, k=96, groups=2))
    )


def test_volumes_have_the_candidates_of_as_many_columns() -> None:
    volumes, images = PROBLEM.of_volumes(2), replace(PROBLEM, strides=(4, 2), k=24, cut=(0, 0))
    found = tuple(FAMILY.candidates(volumes, get(90)))
    assert {config.columns for config in found} == {c.columns for c in _candidates(images)}
    assert {config.slices for config in found} == {True}
    assert {config.slices for config in _candidates()} == {False}
    assert families.candidates(volumes, get(90)) == found


def test_planning_may_lack_kernels_for_some_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = PROBLEM.of_volumes(2)
    assert not families.is_unmeasured(volumes)
    monkeypatch.setattr(FAMILY, "unmeasured", (ConvTranspose3dProblem,))
    empty_caches()
    assert families.is_unmeasured(volumes)
    assert not families.is_unmeasured(PROBLEM)
    with planned(FAMILY):
        assert not families.is_unmeasured(volumes)
    monkeypatch.undo()
    empty_caches()


def test_places_of_pixels_take_time() -> None:
    config, arch = _candidates()[0], get(90)
    taken = FAMILY.predicted_us(PROBLEM, config, arch)
    more = FAMILY.predicted_us(replace(PROBLEM, chain=("Bias", "Add")), config, arch)
    assert 0 < taken < more


def test_phases_with_fewer_taps_have_tiles_of_their_own() -> None:
    thirds = replace(PROBLEM, k=128, zeros=(1, 1))
    found, whole = _candidates(thirds), _candidates(replace(thirds, zeros=(0, 0)))
    assert not any(config.resident for config in found if config.columns < 4 * 128)
    arch = get(90)

    def fastest(problem: ConvTransposeProblem) -> float:
        return min(FAMILY.predicted_us(problem, config, arch) for config in whole)

    best = min(found, key=lambda config: FAMILY.predicted_us(thirds, config, arch))
    assert 128 % best.columns == 0
    assert fastest(thirds) < fastest(replace(thirds, zeros=(0, 0)))
    # 4, 2, 2 and 1 taps of 4; two phases with 4 and two with 2; all with one of 4
    shares = [_taps_share(thirds, columns) for columns in (128, 256, 512)]
    assert shares == [9 / 16, 3 / 4, 1.0]
