"""Several architectures decide together, by the geometric mean of their gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx
import pytest

from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.timings import NOTHING, Comparison, Timings
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.ranges import AS_IS
from onnxbolt.plan.regions import Region
from onnxbolt.plan.verdicts import Verdict, joint_regions
from tests.support import Net, prepare

PREDICTED = Comparison(1.0, 0.0, 1.0, 0.0, measured=False)


def product(rows: int = 1024, width: int = 2048) -> onnx.ModelProto:
    """A GEMM and its GELU."""
    net = Net({"x": (rows, width)}, opset=20)
    return net.model(net.node("Gelu", net.linear("x", width, width)))


def convolution() -> onnx.ModelProto:
    """A convolution and its ReLU, with changes of layout at both ends."""
    net = Net({"x": (1, 128, 7, 7)})
    return net.model(net.node("Relu", net.conv("x", 128, 128, 3, pads=[1] * 4)))


def planned(model: onnx.ModelProto, archs: Sequence[int], timings: Timings = NOTHING) -> Plan:
    graph = prepare(model, "fp16")
    return plan(graph, partition(match(graph)[0]), archs, "winning", timings)


def verdict(*gains: float) -> Verdict:
    return Verdict(
        "", tuple(range(len(gains))), tuple(replace(PREDICTED, ort_us=gain) for gain in gains)
    )


@pytest.mark.parametrize(
    ("gains", "fused"),
    [
        ((1.1,), True),
        ((0.9,), False),
        ((0.8, 1.5), True),
        ((1.5, 0.8), True),
        ((0.6, 1.2), False),
        ((1.2, 0.6), False),
        ((0.9, 0.9, 1.3), True),
    ],
)
def test_the_geometric_mean_decides(gains: tuple[float, ...], fused: bool) -> None:
    assert verdict(*gains).fused is fused
    assert verdict(*gains).gain == pytest.approx(
        math.exp(math.fsum(map(math.log, gains)) / len(gains))
    )


def test_noise_is_no_gain() -> None:
    within, beyond = Comparison(9.9, 0.0, 10.0, 0.0), Comparison(9.0, 0.0, 10.0, 0.0)
    assert not Verdict("", (80,), (within,)).fused
    assert not Verdict("", (80, 90), (within, within)).fused
    assert Verdict("", (80, 90), (within, beyond)).fused


def test_a_decision_of_the_lock_file_stays() -> None:
    assert not Verdict(
        "", (80, 90), (replace(PREDICTED, ort_us=9.0), replace(PREDICTED, decided=False))
    ).fused
    assert Verdict(
        "", (80, 90), (replace(PREDICTED, ort_us=0.1), replace(PREDICTED, decided=True))
    ).fused


@pytest.mark.parametrize(("model", "fused"), [(product(), True), (convolution(), False)])
def test_all_architectures_decide_whichever_is_named_first(
    model: onnx.ModelProto, fused: bool
) -> None:
    """Both lose on sm_80 and win on sm_90: the product by more than it loses."""
    assert not planned(model, [80]).candidates
    assert planned(model, [90]).candidates
    for archs in ([80, 90], [90, 80]):
        chosen = planned(model, archs)
        assert bool(chosen.candidates) is fused
        assert [(region.archs, region.fused) for region in chosen.verdicts] == [
            (tuple(archs), fused)
        ]
        assert {comparison.fused for comparison in chosen.used.comparisons.values()} == {fused}


def test_without_measurements_nobody_asks_for_parts_of_a_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A region of n nodes has more than 2 n of them, and the key of each takes n steps."""
    monkeypatch.setattr(Region, "key_of", lambda *_: pytest.fail("asked for the key of a part"))
    net = Net({"x": (8, 64, 28, 28)})
    y = net.node("Relu", net.conv("x", 64, 64, 3, pads=[1] * 4))
    assert planned(
        net.model(net.node("Relu", net.conv(y, 64, 128, 3, pads=[1] * 4))), [90]
    ).verdicts


def test_one_measured_architecture_decides_with_the_predictions_of_others() -> None:
    predicted = planned(product(), [80, 90])
    keys = list(predicted.used.comparisons)
    slower = planned(
        product(), [80, 90], Timings(comparisons={keys[1]: Comparison(10.0, 0.0, 5.0, 0.0)})
    )
    assert predicted.candidates
    assert not slower.candidates
    assert slower.refusals[0].values.keys() == {
        "sm_80 ours_us",
        "sm_80 ort_us",
        "sm_90 ours_us",
        "sm_90 ort_us",
    }


def test_a_part_that_was_measured_on_one_architecture_is_predicted_on_the_other() -> None:
    net = Net({"x": (8, 64, 28, 28)})
    y = net.node("Relu", net.conv("x", 64, 64, 3, pads=[1] * 4))
    model = net.model(net.node("Relu", net.conv(y, 64, 128, 3, pads=[1] * 4)))

    graph = prepare(model, "fp16")
    found = plan(graph, partition(match(graph)[0]), [90, 80], "all", NOTHING)
    region = joint_regions(found.assignment, [90, 80], AS_IS)[0][0]
    part = next(part for part in region.parts if part.kind == "without" and part.left_out == (1,))
    partly = planned(
        model,
        [90, 80],
        Timings(comparisons={region.key_of(part): Comparison(1.0, 0.0, 100.0, 0.0)}),
    )
    assert len(partly.candidates) == 1
    again = planned(model, [90, 80], replace(partly.used, frozen=True))
    assert list(again.problems.values()) == list(partly.problems.values())
