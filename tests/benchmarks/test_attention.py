"""The benchmark of attention, without a GPU: rows, configurations, mirrors of C++ structures."""

from __future__ import annotations

import pytest

from benchmarks import attention
from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.families import candidates
from tests.gpu import device


def test_its_rows_are_targets() -> None:
    cases = {case.name: case for case in attention.cases()}
    assert len(cases) == 18
    assert cases["ViT-B b32"].problem.shape == "attention 32x12x197x64"
    assert cases["Swin s1 b16"].problem.mask_shape == (1, 3, 49, 49)
    assert cases["BERT 32x40"].problem.mask == ("kept",)
    assert cases["LLM 1x2048 d128"].problem.band[1:] == (0, 0)


@pytest.mark.parametrize("case", attention.cases(), ids=lambda case: case.name)
def test_every_row_has_kernels_of_all_families_or_some(case: attention.Case) -> None:
    found = attention.configurations(case.problem, get(90))
    assert found == list(candidates(case.problem, get(90)))
    some = attention.configurations(case.problem, get(90), ["attention"])
    assert {config.family.name for config in some} == {"attention"}


def test_its_structures_are_those_of_the_gpu_tests() -> None:
    """tests/custom_ops/test_mirrors.py compares these with C++."""
    theirs = device.Attention
    names = [field[0] for field in theirs._fields_]
    assert [field[0] for field in attention.Attention._fields_] == names
    for name in names:
        ours, other = (getattr(kind, name) for kind in (attention.Attention, theirs))
        assert (ours.offset, ours.size) == (other.offset, other.size)


def test_without_a_gpu_it_says_so() -> None:
    assert attention.main(["--rows", "ViT-B b1"]) == 1


def test_a_build_compiles_the_kernels_of_all_rows_at_once(compiled: list[Instance]) -> None:
    assert attention.main(["--build", "--rows", "ViT-B b1,Swin s1 b16"]) == 0
    assert {instance.config.arch for instance in compiled} == {90}
    assert len(compiled) > 20
