"""The benchmark of norms in products, without a GPU: rows, pairs of kernels and
configurations."""

from __future__ import annotations

from benchmarks import norm_products as norms
from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import STORE
from onnxbolt.families import named
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import GemmMomentsProblem

WHOLE = [case for case in norms.cases() if case.behind is None]
FOLDED = [case for case in norms.cases() if case.behind is not None]


def test_rows_are_of_both_products_in_front_of_norms() -> None:
    names = [case.name for case in WHOLE]
    assert len(set(names)) == len(norms.SHAPES)
    assert "1280x768x3072 Bias+Add+LayerNorm+Scale+Bias" in names
    assert "6304x768x768 Bias+Add+Store+LayerNorm+Scale+Bias" in names


def test_rows_are_of_both_products_behind_norms() -> None:
    names = [case.name for case in FOLDED]
    assert len(set(names)) == len(norms.FOLDED)
    assert "6304x768x3072 Bias+Add+Moments, 6304x2304x768 FoldedLayerNorm+Bias" in names
    assert "6304x768x768 Bias+Add+Moments, 6304x3072x768 FoldedLayerNorm+Bias+GeluErf" in names


def test_either_of_two_kernels_adds_the_residual() -> None:
    for case in norms.cases():
        problem = case.normalized
        for product, norm in norms.pairs(problem):
            chains = product.chain + norm.chain
            assert sorted((*chains, "LayerNorm")) == sorted(problem.chain) or (
                STORE in problem.chain
                and sorted((*chains, "LayerNorm", STORE)) == sorted(problem.chain)
            )
            assert (product.m, product.n, product.k) == (problem.m, problem.n, problem.k)
            assert (norm.m, norm.c) == (problem.m, problem.n)


def test_a_folded_norm_saves_a_kernel() -> None:
    for case in FOLDED:
        writer, reader = case.ours
        assert isinstance(writer, GemmMomentsProblem)
        assert isinstance(reader, GemmMomentsProblem)
        assert (writer.writes, reader.reads) == (True, True)
        assert (reader.m, reader.k) == (writer.m, writer.n)
        assert reader.product == case.behind
        for side, kernels in case.sides.items():
            assert len(kernels) == (2 if side == "ours" else 3)
            assert side == "ours" or kernels[-1] == case.behind


def test_all_kernels_that_normalize_are_timed() -> None:
    problem, arch = WHOLE[0].normalized, get(90)
    assert set(norms.configurations(problem, arch)) == set(
        named("gemm_norm_sm90").candidates(problem, arch)
    )
    for alone in (*norms.pairs(problem)[0], *FOLDED[0].ours):
        best = [config for _, config in ranked(alone, arch)]
        assert norms.configurations(alone, arch) == best[: norms.FEW]
        assert best


def test_without_a_gpu_it_says_so() -> None:
    assert norms.main(["--shapes", "1280x768x768"]) == 1


def test_a_build_compiles_the_kernels_of_all_rows_at_once(compiled: list[Instance]) -> None:
    assert norms.main(["--build", "--shapes", "1280x768x768"]) == 0
    found = [case for case in norms.cases() if case.name.startswith("1280x768x768 ")]
    assert len(found) == 2
    for case in found:
        for problem in case.ours:
            configs = norms.configurations(problem, get(90))
            assert len([i for i in compiled if i.chain == problem.chain]) == len(configs)
