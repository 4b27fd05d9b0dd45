"""The benchmark of norms in products, without a GPU: rows, pairs of kernels, configurations, and
mirrors of C++ structures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import norm_products as norms
from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import STORE
from onnxbolt.families import named
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import GemmNormProblem
from onnxbolt.tune.library import Result
from tests.gpu import device


def test_rows_are_of_both_products_in_front_of_norms() -> None:
    names = [norms.name(problem) for problem in norms.problems()]
    assert len(set(names)) == len(norms.SHAPES)
    assert "1280x768x3072 Bias+Add+LayerNorm+Scale+Bias" in names
    assert "6304x768x768 Bias+Add+Store+LayerNorm+Scale+Bias" in names


def test_either_of_two_kernels_adds_the_residual() -> None:
    for problem in norms.problems():
        for product, norm in norms.pairs(problem):
            chains = product.chain + norm.chain
            assert sorted((*chains, "LayerNorm")) == sorted(problem.chain) or (
                STORE in problem.chain
                and sorted((*chains, "LayerNorm", STORE)) == sorted(problem.chain)
            )
            assert (product.m, product.n, product.k) == (problem.m, problem.n, problem.k)
            assert (norm.m, norm.c) == (problem.m, problem.n)


def test_all_kernels_that_normalize_are_timed() -> None:
    problem, arch = norms.problems()[0], get(90)
    assert set(norms.configurations(problem, arch)) == set(
        named("gemm_norm_sm90").candidates(problem, arch)
    )
    for alone in norms.pairs(problem)[0]:
        best = [config for _, config in ranked(alone, arch)]
        assert norms.configurations(alone, arch) == best[: norms.FEW]


def test_its_structures_are_those_of_the_gpu_tests() -> None:
    """tests/custom_ops/test_mirrors.py compares these with C++."""
    fields = [field[0] for field in device.Gemm._fields_]
    assert [field[0] for field in norms.Gemm._fields_] == fields
    for name in fields:
        assert getattr(norms.Gemm, name).offset == getattr(device.Gemm, name).offset


def test_without_a_gpu_it_says_so() -> None:
    assert norms.main(["--shapes", "1280x768x768"]) == 1


def test_a_build_compiles_the_kernels_of_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Instance] = []

    def build(given: list[Instance]) -> Iterator[Result]:
        compiled.extend(given)
        return iter(())

    monkeypatch.setattr(norms, "build", build)
    assert norms.main(["--build", "--shapes", "1280x768x768"]) == 0
    problems = [p for p in norms.problems() if (p.m, p.k) == (1280, 768)]
    assert len(problems) == 1
    assert len([i for i in compiled if "LayerNorm" in i.chain]) == len(
        norms.configurations(problems[0], get(90))
    )
    assert all(isinstance(problem, GemmNormProblem) for problem in problems)
