"""Planning: what is predicted to lose is not fused, and instances are shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt.archs import ARCHS
from onnxbolt.dtypes import DType
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.timings import NOTHING, Choice, Comparison, Timings
from onnxbolt.plan.choose import Plan, choices, plan
from onnxbolt.plan.cost import candidates, fused_us, predict
from onnxbolt.plan.regions import regions
from onnxbolt.problems import ConvProblem, GemmProblem
from tests.support import Net, prepare


def planned(net: Net, *outputs: str, fuse: str = "winning", archs: tuple[int, ...] = (90,)) -> Plan:
    graph = prepare(net.model(*outputs), "fp16")
    return plan(graph, partition(match(graph)[0]), archs, fuse)


def test_a_lone_small_convolution_is_not_worth_two_transposes() -> None:
    net = Net({"x": (8, 64, 56, 56)})
    y = net.conv(net.node("Softmax", "x", axis=1), 64, 64)
    chosen = planned(net, net.node("Softmax", y, axis=1))
    assert not chosen.candidates
    (refusal,) = chosen.refusals
    assert refusal.values["ours_us"] > refusal.values["ort_us"] > 0
    assert planned(net, net.node("Softmax", y, axis=1), fuse="all").candidates


def test_a_long_chain_of_convolutions_is_one_winning_region() -> None:
    net = Net({"x": (32, 64, 56, 56)})
    y = "x"
    for _ in range(8):
        # two kernels of ONNX Runtime beside cuDNN's
        y = net.node("HardSwish", net.conv(y, 64, 64, 3, pads=[1, 1, 1, 1]))
    chosen = planned(net, y)
    assert len(chosen.candidates) == 8
    assert [len(region.candidates) for region in regions(chosen.assignment, 90)] == [8]


def test_regions_are_connected_through_poolings_but_not_through_nodes_that_stay() -> None:
    net = Net({"x": (4, 16, 16, 16)})
    y = net.node("MaxPool", net.conv("x", 16, 16), kernel_shape=[2, 2], strides=[2, 2])
    y = net.node("Softmax", net.conv(y, 16, 16), axis=2)
    assert sorted(
        len(r.candidates)
        for r in regions(planned(net, net.conv(y, 16, 16), fuse="all").assignment, 90)
    ) == [1, 2]


def test_every_architecture_gets_a_row() -> None:
    net = Net({"x": (128, 256)})
    chosen = planned(
        net, net.node("Relu", net.linear("x", 256, 256)), fuse="all", archs=(90, 80, 75)
    )
    assert [config.arch for config in next(iter(chosen.configs.values()))] == [90, 80, 75]


def test_a_type_without_tensor_cores_is_refused_by_name() -> None:
    net = Net({"x": (128, 256)})
    graph = prepare(net.model(net.linear("x", 256, 256)))
    chosen = plan(graph, partition(match(graph)[0]), [75], "all")
    assert not chosen.candidates
    assert "sm_75" in chosen.refusals[0].reason


@pytest.mark.parametrize("arch", [80, 90])
def test_shared_instances_cost_at_most_three_percent(arch: int) -> None:
    problems = [
        GemmProblem(m, n, 512, DType.F16, DType.F16, ("Bias",))
        for m in (256, 512, 1024, 4096)
        for n in (256, 512, 768)
    ]
    problems += [
        ConvProblem(
            8,
            28,
            28,
            c,
            c,
            3,
            3,
            28,
            28,
            (1, 1, 1, 1),
            (1, 1),
            (1, 1),
            1,
            DType.F16,
            DType.F16,
            ("Bias", "Relu"),
        )  # type: ignore[misc]
        for c in (64, 128, 256)
    ]
    picked = {problem: choice.config for problem, choice in choices(problems, ARCHS[arch]).items()}
    for problem, config in picked.items():
        assert fused_us(problem, config, ARCHS[arch]) <= 1.03 * predict(problem, arch)[1]
    assert len({(c.instance(), p.chain) for p, c in picked.items()}) < len(problems)


def test_measurements_decide_before_predictions() -> None:
    """A measured choice is taken though another is predicted faster, and a measured comparison
    against the prediction."""
    net = Net({"x": (128, 256)})
    model = net.model(net.node("Relu", net.linear("x", 256, 256)))

    def planned_with(timings: Timings) -> Plan:
        graph = prepare(model, "fp16")
        return plan(graph, partition(match(graph)[0]), [90, 80], "winning", timings)

    predicted = planned_with(NOTHING)
    assert set(predicted.sources.values()) == {"predicted"}
    (problem, _), _ = predicted.used.choices
    slower = sorted(
        (fused_us(problem, config, ARCHS[90]), config) for config in candidates(problem, ARCHS[90])
    )[-1][1]
    measured = planned_with(Timings({(problem, 90): Choice(slower, 3.5)}))
    assert next(iter(measured.configs.values()))[0] == slower
    assert set(measured.sources.values()) == {"measured,predicted"}
    assert measured.used.choices[problem, 90] == Choice(slower, 3.5)
    assert next(iter(measured.predictions.values()))[0].best_known_us == 3.5
    within_noise = dict.fromkeys(predicted.used.comparisons, Comparison(9.9, 0.0, 10.0, 0.0))
    lost = planned_with(Timings(comparisons=within_noise))
    assert not lost.candidates
    assert lost.refusals[0].reason.startswith("measured slower")
    assert lost.refusals[0].values == {
        "sm_90 ours_us": 9.9,
        "sm_90 ort_us": 10.0,
        "sm_80 ours_us": 9.9,
        "sm_80 ort_us": 10.0,
    }


@pytest.mark.parametrize("archs", [(90,), (90, 80), (80, 75)])
def test_what_was_used_decides_the_same_again(archs: tuple[int, ...]) -> None:
    net = Net({"x": (8, 64, 56, 56)})
    y = net.node("Relu", net.conv(net.node("Relu", net.conv("x", 64, 64, 3)), 64, 64, 3))
    model = net.model(net.node("Softmax", net.conv(net.node("Softmax", y, axis=1), 64, 64), axis=1))
    first, again = prepare(model, "fp16"), prepare(model, "fp16")
    chosen = plan(first, partition(match(first)[0]), archs, "winning")
    frozen = plan(
        again, partition(match(again)[0]), archs, "winning", replace(chosen.used, frozen=True)
    )
    assert list(frozen.configs.values()) == list(chosen.configs.values())
    assert frozen.used == chosen.used
    assert [r.node for r in frozen.refusals] == [r.node for r in chosen.refusals]
