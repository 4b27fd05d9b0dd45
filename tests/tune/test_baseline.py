"""Both sides of a region as sessions, on the CPU: function bodies in place of kernels, a clock
in place of events."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from onnxbolt.archs import ARCHS
from onnxbolt.library import make_manifest
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.records import Machine
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Cut, Timings
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan, choices, plan
from onnxbolt.plan.cost import candidates
from onnxbolt.plan.regions import Region, regions
from onnxbolt.tune import baseline, racing
from onnxbolt.tune.baseline import Bench, compare
from onnxbolt.tune.cuda import Stream
from onnxbolt.tune.database import Database
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.submodels import Original, ends, fuse, repeat
from tests.support import Net, feeds_of, ops, prepare, run

MACHINE = Machine("test", 90, 700, "13.0", "4.2", "")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "tuning.sqlite") as opened:
        yield opened


def convolutional() -> onnx.ModelProto:
    """Two convolutions with a pooling between them, a node that stays, and a head with two
    products, which are alike: the mean keeps the softmax in 16 bits."""
    net = Net({"x": (2, 16, 8, 8)})
    y = net.node("Relu", net.batchnorm(net.conv("x", 16, 32, 3, pads=[1, 1, 1, 1]), 32))
    y = net.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = net.node("Softmax", net.conv(y, 32, 16), axis=1)
    y = net.node("Flatten", y)
    for _ in range(2):
        y = net.node("Tanh", net.linear(y, 256, 256))
    return net.model(net.node("ReduceMean", net.node("Softmax", y, axis=1)))


def planned(
    model: onnx.ModelProto, precision: str, timings: Timings = NOTHING, how: str = "all"
) -> Plan:
    graph = prepare(model, precision)
    return plan(graph, partition(match(graph)[0]), [90], how, timings)


def bench(
    timings: Timings,
    database: Database,
    machine: Machine,
    budget: float,
    stream: Stream | None,
    progress: Callable[[str], None] = lambda message: None,
) -> Bench:
    return Bench(timings, database, machine, time.monotonic() + budget, stream, progress)


def regions_of(model: onnx.ModelProto, precision: str = "fp16") -> list[Region]:
    return regions(planned(model, precision).assignment, 90)


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_a_region_is_taken_out_as_the_user_wrote_it_and_with_its_own_types(precision: str) -> None:
    model = convolutional()
    region = next(r for r in regions_of(model, precision) if len(r.candidates) == 2)
    taken = Original(model, precision).nodes_of(region)
    assert taken is not None
    written, canonical = taken
    assert ops(written) == ["Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "Softmax"]
    assert "BatchNormalization" not in ops(canonical)
    wanted = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.FLOAT
    for side in taken:
        onnx.checker.check_model(side)
        assert {v.type.tensor_type.elem_type for v in (*side.graph.input, *side.graph.output)} == {
            wanted
        }


def test_both_sides_give_the_same_answer() -> None:
    model = convolutional()
    original = Original(model, "keep")
    for region in regions_of(model, "keep"):
        taken = original.nodes_of(region)
        assert taken is not None
        fused = fuse(taken[1], 90, NOTHING)
        optimized = fused.model(make_manifest(fused.ops, fused.instances))
        onnx.checker.check_model(optimized)
        assert sorted(map(repr, fused.problems)) == sorted(map(repr, region.problems))
        assert not {"Conv", "MatMul"} & set(ops(optimized))
        feeds = feeds_of(taken[0])
        for expected, got in zip(run(taken[0], feeds), run(optimized, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_copies_have_inputs_of_their_own_and_share_the_weights() -> None:
    net = Net({"x": (2, 8)})
    model = net.model(net.linear("x", 8, 4))
    three = repeat(model, 3)
    onnx.checker.check_model(three)
    assert len(three.graph.initializer) == len(model.graph.initializer)
    feeds = {f"x#{i}": np.full((2, 8), i, np.float32) for i in range(3)}
    for i, answer in enumerate(run(three, feeds)):
        np.testing.assert_array_equal(answer, run(model, {"x": feeds[f"x#{i}"]})[0])


def test_a_symbolic_size_is_filled_in() -> None:
    net = Net({"x": ("N", 64)})
    model = net.model(net.linear("x", 64, 64))
    (region,) = regions_of(model)
    taken = Original(model, "fp16").nodes_of(region)
    assert taken is not None
    assert [d.dim_value for d in taken[0].graph.input[0].type.tensor_type.shape.dim] == [8, 64]


def test_what_a_region_hands_on_includes_a_graph_output_that_it_reads_itself() -> None:
    net = Net({"x": (1, 16, 8, 8)})
    inner = net.node("Relu", net.conv("x", 16, 16))
    model = net.model(net.conv(inner, 16, 16), inner)
    region = next(r for r in regions_of(model, "keep") if len(r.candidates) == 2)
    assert len(ends(region)[1]) == 2


def test_equal_regions_are_measured_once_and_remembered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lines = convolutional(), list[str]()
    found = regions_of(model)
    first = compare(
        found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None, lines.append)
    )
    assert first.keys() == {region.key for region in found}
    assert len(lines) == len(first) == 2
    assert all(c.measured and c.ours_us > 0 and c.ort_us > 0 for c in first.values())
    monkeypatch.setattr(baseline, "_measure_all", lambda *_: pytest.fail("measured again"))
    assert compare(found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None)) == first


def test_another_configuration_or_machine_is_measured_anew(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net({"x": (64, 64)})
    model = net.model(net.linear("x", 64, 64))
    found = regions_of(model)
    compare(found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None))
    (problem,) = found[0].problems
    first = choices([problem], ARCHS[90])[problem].config
    second = next(config for config in candidates(problem, ARCHS[90]) if config != first)
    asked: list[Region] = []

    def ask(bench: object, missing: list[Region], original: object) -> dict[str, object]:
        asked.extend(missing)
        return {}

    monkeypatch.setattr(baseline, "_measure_all", ask)
    compare(
        found,
        model,
        "fp16",
        bench(Timings({(problem, 90): Choice(second, 1.0)}), database, MACHINE, 600, None),
    )
    compare(
        found,
        model,
        "fp16",
        bench(NOTHING, database, Machine("other", 90, 700, "13.0", "4.2", ""), 600, None),
    )
    assert len(asked) == 2


def test_a_spent_budget_leaves_the_rest_to_prediction(database: Database) -> None:
    model = convolutional()
    assert (
        compare(regions_of(model), model, "fp16", bench(NOTHING, database, MACHINE, 0, None)) == {}
    )


def test_regions_are_prepared_one_by_one_until_the_budget_is_spent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes while the first region's first part is prepared: that region is
    measured, and nothing else is begun."""
    model, lines = convolutional(), list[str]()
    found = sorted(regions_of(model), key=lambda region: -len(region.candidates))
    made: list[str] = []

    def fused(*arguments: Any) -> Any:
        made.append("part" if len(arguments) > 4 else "whole")
        if made[-1] == "part":
            monkeypatch.setattr(Bench, "over", True)
        return fuse(*arguments)

    monkeypatch.setattr(baseline, "fuse", fused)
    monkeypatch.setattr(baseline, "promising", lambda region, timings: region.parts)
    monkeypatch.setattr(baseline, "_predicted", lambda region: float(len(region.candidates)))
    answers = compare(
        found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None, lines.append)
    )
    assert made == ["whole", "part"]
    assert answers.keys() == {found[0].key}
    assert lines[1:] == ["the budget for comparing with ONNX Runtime is spent"]


def test_a_part_of_a_region_has_to_beat_the_whole_and_no_fusion(
    database: Database,
) -> None:
    model = convolutional()
    region = next(r for r in regions_of(model) if len(r.candidates) == 2)
    picked = choices(region.problems, ARCHS[90])
    times = zip(region.problems, (1e6, 0.1), strict=True)
    timings = Timings({(problem, 90): Choice(picked[problem].config, us) for problem, us in times})
    answers = compare([region], model, "fp16", bench(timings, database, MACHINE, 600, None))
    measured = [part for part in region.parts if region.key_of(part) in answers]
    assert measured
    assert {part.left_out for part in measured} == {(0,)}
    whole = answers[region.key]
    for part in measured:
        assert answers[region.key_of(part)].ort_us == min(whole.ours_us, whole.ort_us)


def test_what_cannot_be_compared_is_remembered_until_something_changes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lines = convolutional(), list[str]()
    found = regions_of(model)
    with monkeypatch.context() as broken:
        broken.setattr(
            racing,
            "search",
            lambda *_: (_ for _ in ()).throw(RuntimeError("no such kernel\nand more")),
        )
        assert (
            compare(
                found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None, lines.append)
            )
            == {}
        )
    assert len(lines) == 2
    assert all(
        line.endswith("cannot be compared with ONNX Runtime, because no such kernel")
        for line in lines
    )
    with monkeypatch.context() as watched:
        watched.setattr(baseline, "_measure_all", lambda *_: pytest.fail("tried again"))
        assert compare(found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None)) == {}
    assert (
        len(
            compare(
                found,
                model,
                "fp16",
                bench(NOTHING, database, Machine("other", 90, 700, "13.0", "4.2", ""), 600, None),
            )
        )
        >= 2
    )


def test_regions_whose_kernels_would_take_long_to_compile_are_not_begun(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lines = convolutional(), list[str]()
    found = regions_of(model)
    gemm = next(r for r in found if len(r.candidates) == 1)
    choice = choices(gemm.problems, ARCHS[90])[gemm.problems[0]]
    timings = Timings({(gemm.problems[0], 90): Choice(choice.config, 1.0)})
    asked: list[Region] = []
    monkeypatch.setattr(baseline, "_work", lambda bench, region, original: asked.append(region))
    compare(
        found,
        model,
        "fp16",
        bench(timings, database, MACHINE, 600, cast(Stream, object()), lines.append),
    )
    assert {region.key for region in asked} == {region.key for region in found}
    asked.clear()
    compare(
        found,
        model,
        "fp16",
        bench(timings, database, MACHINE, 1, cast(Stream, object()), lines.append),
    )
    assert [region.key for region in asked] == [gemm.key]
    assert lines == [
        "1 regions are not compared with ONNX Runtime: the budget ended before their kernels were"
        " compiled"
    ]


def test_the_plan_follows_the_measurements() -> None:
    model = convolutional()
    region = next(r for r in regions_of(model) if len(r.candidates) == 2)
    first, second = region.problems
    wins, loses = Comparison(1, 0, 2, 0), Comparison(2, 0, 1, 0)

    def kept(comparisons: dict[str, Comparison]) -> Plan:
        return planned(model, "fp16", Timings(comparisons=comparisons, machine=MACHINE), "winning")

    assert {first, second} <= set(kept({region.key: wins}).problems.values())
    lost = kept({region.key: loses})
    assert not {first, second} & set(lost.problems.values())
    assert [r.values for r in lost.refusals if "measured slower than ONNX Runtime" in r.reason] == [
        {"ours_us": 2, "ort_us": 1}
    ] * 2
    without = next(
        part for part in region.parts if part.kind == "without" and part.left_out == (0,)
    )
    faster = {region.key_of(without): Comparison(0.5, 0, 1, 0)}
    for whole in (wins, loses):  # a part may win though the whole loses
        partly = kept({region.key: whole, **faster})
        assert first not in partly.problems.values()
        assert any("without" in refusal.reason for refusal in partly.refusals)
        # the rest of a region that won is not predicted away
        assert second in partly.problems.values()
        again = kept(partly.used.comparisons)
        assert list(again.problems.values()) == list(partly.problems.values())


def test_what_was_not_compared_is_fused_where_that_is_predicted_to_be_faster() -> None:
    """With measured kernels, as after a budget that ended before the comparison, as well as
    without."""
    net = Net({"x": (4096, 1024)})
    model = net.model(net.linear("x", 1024, 1024))
    predicted = planned(model, "fp16", NOTHING, "winning")
    (comparison,) = predicted.used.comparisons.values()
    assert 1 < comparison.gain < 1.5  # so little that measuring might find otherwise
    ((key, choice),) = predicted.used.choices.items()
    measured = Timings({key: dataclasses.replace(choice, measured=True)}, machine=MACHINE)
    assert (
        len(planned(model, "fp16", measured, "winning").candidates)
        == len(predicted.candidates)
        == 1
    )


def test_a_chain_is_compared_as_the_plan_cuts_it(database: Database) -> None:
    """Predictions would have one kernel for all three layers."""
    chain = Net({"x": (512, 256)})
    y = "x"
    for k, n in ((256, 64), (64, 16), (16, 8)):
        y = chain.node("Relu", chain.linear(y, k, n))
    model = chain.model(y)
    subject = Subject.of(model, Options())
    ((key, cut),) = subject.plan([90], "all", NOTHING).used.cuts.items()
    assert cut.layers == 3
    for layers in (1, 2):
        decided = subject.plan([90], "all", Timings(cuts={key: Cut(layers)}))
        found = regions(decided.assignment, 90)
        assert [len(region.candidates[0].widths) for region in found] == [layers, 3 - layers]
        answers = compare(found, model, "fp16", bench(NOTHING, database, MACHINE, 600, None))
        assert answers.keys() == {region.key for region in found}
