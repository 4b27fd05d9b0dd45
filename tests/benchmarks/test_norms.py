"""The benchmark of norms, without a GPU: rows and configurations."""

from __future__ import annotations

from benchmarks import norms
from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.families import candidates
from onnxbolt.tune.tasks import instance_of


def test_each_shape_is_measured_alone_and_with_a_residual() -> None:
    names = [norms.name(problem) for problem in norms.problems()]
    assert len(set(names)) == len(names) == 2 * len(norms.SHAPES) + len(norms.SEQUENCES)
    assert "6304x768 Scale+Bias" in names
    assert "6304x768 Add+Store+Scale+Bias" in names
    assert "6304x768 Add+Store+Scale+Bias, token norm" in names
    assert "1280x768 Add+Scale+Bias, embedding norm" in names


def test_the_planner_s_configurations_and_variants_are_timed() -> None:
    problem = norms.problems()[0]
    found = norms.configurations(problem, get(90))
    assert set(candidates(problem, get(90))) < set(found)
    assert len(set(found)) == len(found)


def test_without_a_gpu_it_says_so() -> None:
    assert norms.main(["--shapes", "1280x768"]) == 1


def test_a_build_compiles_the_kernels_of_all_rows_at_once(compiled: list[Instance]) -> None:
    assert norms.main(["--build", "--shapes", "1280x768,3136x384"]) == 0
    found = [p for p in norms.problems() if p.m in (1280, 3136)]
    assert compiled == [
        instance_of(p, config) for p in found for config in norms.configurations(p, get(90))
    ]
