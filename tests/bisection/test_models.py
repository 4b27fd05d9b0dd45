"""Models of some steps: whatever is taken, they compute what the original does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import onnxbolt
from onnxbolt.bisection.models import _fusion, opened_maker
from onnxbolt.bisection.search import FUSION, LAYOUT, NODE, STAGE
from onnxbolt.graph.inlining import with_inner
from onnxbolt.library import metadata
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.options import Options
from onnxbolt.verify import verify
from tests.e2e import bodies, sequence, vision

MODELS: tuple[Callable[[], onnx.ModelProto], ...] = (
    vision.resnet,
    vision.densenet,
    vision.swin,
    vision.unet,
    vision.yolo,
    vision.shufflenet,
    vision.convnext,
    sequence.vit,
    sequence.llama,
    sequence.bert_embedding,
    lambda: bodies.in_branches(vision.resnet()),
)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.onnx", tmp_path / "made.onnx"


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_any_steps_keep_the_answers(
    build: Callable[[], onnx.ModelProto], arch: str, paths: tuple[Path, Path]
) -> None:
    source, made = paths
    onnx.save(build(), source)
    draw = random.Random(0)
    with opened_maker(source, Options(fuse="all", archs=arch)) as maker:
        plan = maker.plan(frozenset())
        steps = plan.steps
        kinds = [step.kind for step in steps]
        layout = kinds.index(LAYOUT) + 1
        assert kinds == sorted(kinds, key=[STAGE, LAYOUT, NODE, FUSION].index)
        assert len({step.key for step in steps}) == len(steps)
        some = [[s for s in steps[layout:] if draw.random() < 0.5] for _ in range(2)]
        for taken in (
            steps[: draw.randrange(layout)],
            steps[:layout],
            steps[: draw.randrange(layout, len(steps))],
            *([*steps[:layout], *each] for each in some),
            steps,
        ):
            maker.write(made, taken, plan)
            found = verify(source, made)
            assert found.passed, (len(taken), found.failures)


def test_all_steps_make_the_model_of_optimize(paths: tuple[Path, Path]) -> None:
    source, made = paths
    onnx.save(vision.resnet(), source)
    options = Options(fuse="all", archs="sm_90a", library=False, verify=False)
    with opened_maker(source, options) as maker:
        plan = maker.plan(frozenset())
        maker.write(made, plan.steps, plan)
    onnxbolt.optimize(source, source.with_name("out.onnx"), options=options)
    ours, theirs = onnx.load(made), onnx.load(source.with_name("out.onnx"))
    assert ours.graph == theirs.graph
    assert metadata(ours)["onnxbolt.digest"] == metadata(theirs)["onnxbolt.digest"]


@pytest.mark.parametrize(
    ("source", "skips"),
    [("conv2", "--skip-node conv2"), ("a b", "--skip-node 'a b'"), ("-v", "--skip-node=-v")],
)
def test_the_remedy_of_a_fusion_can_be_pasted(source: str, skips: str) -> None:
    row: Any = SimpleNamespace(rule="conv+Bias", source_nodes=(source,))
    assert _fusion("relu4", row).remedy == f"onnxbolt optimize {skips}"


def test_only_the_fusions_that_are_taken_are_there(paths: tuple[Path, Path]) -> None:
    source, made = paths
    onnx.save(vision.resnet(), source)
    with opened_maker(source, Options(fuse="all", archs="sm_80")) as maker:
        plan = maker.plan(frozenset())
        before = [step for step in plan.steps if step.kind in (STAGE, LAYOUT)]
        fusions = [step for step in plan.steps if step.kind == FUSION]
        for taken in ([], fusions[2:3], fusions[1:4]):
            maker.write(made, [*before, *taken], plan)
            nodes = with_inner(onnx.load(made).graph.node)
            assert sum(node.domain == DOMAIN for node in nodes) == len(taken)


def test_stages_that_are_left_out(paths: tuple[Path, Path]) -> None:
    source, made = paths
    onnx.save(vision.resnet(), source)
    with opened_maker(source, Options(fuse="all", archs="sm_80")) as maker:
        steps = maker.plan(frozenset()).steps
        assert {"batchnorm", "precision"} <= {step.name for step in steps if step.kind == STAGE}
        without = maker.plan(frozenset({"batchnorm", "precision"}))
        assert not {"batchnorm", "precision"} & {step.name for step in without.steps}
        maker.write(made, without.steps, without)
    model = onnx.load(made)
    assert not any(t.data_type == onnx.TensorProto.FLOAT16 for t in model.graph.initializer)
    assert verify(source, made).passed


def test_skipped_nodes_are_no_steps(paths: tuple[Path, Path]) -> None:
    source, _ = paths
    onnx.save(vision.resnet(), source)
    options = Options(fuse="all", archs="sm_80", skip_rules="gemm")
    with opened_maker(source, options) as maker:
        words = [step.words for step in maker.plan(frozenset()).steps if step.kind == FUSION]
    assert words
    assert not any(each.startswith("gemm") for each in words)
