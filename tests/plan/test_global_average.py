"""Global average poolings that the convolution before them computes itself, where that is
faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

import onnxbolt
from onnxbolt.archs import get
from onnxbolt.candidates import Refusal
from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError
from onnxbolt.measurements.timings import Choice, Timings
from onnxbolt.onnxruntime_time import pool_us
from onnxbolt.plan.cost import predict
from onnxbolt.plan.cuts import cover, cover_as, segments
from onnxbolt.problems import ConvProblem
from tests.support import Net, assert_same, ops, prepare

BLOCK = "conv+Bias+Add+Relu"


def found(
    net: Net, *outputs: str, archs: tuple[int, ...] = (90,)
) -> tuple[list[str], list[Refusal]]:
    """The rules of the candidates, and who is apart from the layer before."""
    candidates, refusals, *_ = cover(prepare(net.model(*outputs), "fp16"), archs)
    return [candidate.rule.removesuffix("+CastF32") for candidate in candidates], [
        refusal for refusal in refusals if refusal.apart
    ]


def block(size: int = 7, batch: int | str = 32, c: int = 512, k: int = 2048) -> tuple[Net, str]:
    """The end of a residual network's last block."""
    net = Net({"x": (batch, c, size, size), "r": (batch, k, size, size)})
    return net, net.node("Relu", net.node("Add", net.conv("x", c, k), "r"))


def mean(net: Net, x: str, keepdims: int | None = None) -> str:
    return (
        net.node("GlobalAveragePool", x)
        if keepdims is None
        else net.node("ReduceMean", x, axes=[2, 3], keepdims=keepdims)
    )


@pytest.mark.parametrize("keepdims", [None, 1, 0])
@pytest.mark.parametrize("batch", [1, 32, "N"])
def test_the_last_convolution_averages_its_images(batch: int | str, keepdims: int | None) -> None:
    net, y = block(batch=batch)
    assert found(net, mean(net, y, keepdims)) == ([f"{BLOCK}+Mean"], [])


def test_a_cast_behind_the_mean_is_part_of_it() -> None:
    net, y = block()
    candidates, *_ = cover(prepare(net.model(mean(net, y)), "fp16"), (90,))
    assert candidates[0].steps[-2:] == ("Mean", "CastF32")
    assert [layer.rule for layer in candidates[0].layers] == [BLOCK]


def test_what_others_read_is_written() -> None:
    net, y = block()
    assert found(net, mean(net, y), y)[0] == [BLOCK]
    assert found(net, mean(net, y), net.node("Softmax", y))[0] == [BLOCK]


@pytest.mark.parametrize(("size", "archs"), [(14, (90,)), (7, (80, 90))])
def test_where_there_is_no_kernel_the_report_says_so(size: int, archs: tuple[int, ...]) -> None:
    net, y = block(size)
    rules, (refusal,) = found(net, mean(net, y), archs=archs)
    assert rules == [BLOCK]
    assert refusal.op == "GlobalAveragePool"
    assert "no kernel computes both" in refusal.reason


def test_images_of_unknown_size_are_written() -> None:
    net = Net({"x": (8, 64, "H", "W")})
    rules, (refusal,) = found(net, mean(net, net.node("Relu", net.conv("x", 64, 256))))
    assert rules == ["conv+Bias+Relu"]
    assert "no fixed size" in refusal.reason


def test_means_without_a_convolution_before_them_stay_poolings() -> None:
    net = Net({"x": (8, 64, 7, 7)})
    assert found(net, mean(net, net.node("MaxPool", net.conv("x", 64, 256), kernel_shape=[2, 2])))[
        0
    ] == ["conv+Bias"]


def test_measured_times_decide_whether_a_mean_is_fused() -> None:
    net, y = block()
    graph = prepare(net.model(mean(net, y)), "keep")
    both, alone = segments(graph, (90,))
    assert [problem.chain for problem in (both, alone)] == [
        ("Bias", "Add", "Relu", "Mean"),
        ("Bias", "Add", "Relu"),
    ]
    choices = {
        (problem, 90): Choice(predict(problem, 90)[0], us)
        for problem, us in ((both, 30.0), (alone, 5.0))
    }
    measured = cover(graph, (90,), timings=Timings(choices))
    assert [candidate.rule for candidate in measured.candidates] == [BLOCK]
    refusal = measured.refusals[-1]
    assert "measured to be slower" in refusal.reason
    assert refusal.values["together_us"] == 30.0
    assert 5.0 < refusal.values["apart_us"] < 30.0
    later = cover(graph, (90,), timings=Timings(cuts=measured.cuts))
    assert [candidate.rule for candidate in later.candidates] == [BLOCK]
    assert "as decided before" in later.refusals[-1].reason


def test_a_measured_time_is_not_compared_with_a_predicted_one() -> None:
    net, y = block()
    graph = prepare(net.model(mean(net, y)), "keep")
    for problem, us in zip(segments(graph, (90,)), (1000.0, 0.001), strict=True):
        choices = {(problem, 90): Choice(predict(problem, 90)[0], us)}
        (candidate,) = cover(graph, (90,), timings=Timings(choices)).candidates
        assert candidate.rule == f"{BLOCK}+Mean"


# on an H200: batch, channels, output channels, chain; microseconds of one kernel, and of the
# convolution's and the pooling's
MEASURED = (
    (32, 512, 2048, ("Bias", "Add", "Relu"), 10.8, 13.9),
    (1, 512, 2048, ("Bias", "Add", "Relu"), 3.1, 5.9),
    (32, 160, 960, ("Bias", "HardSwish"), 4.8, 7.7),
    (1, 160, 960, ("Bias", "HardSwish"), 2.0, 4.4),
)


@pytest.mark.parametrize(("batch", "c", "k", "chain", "one", "two"), MEASURED)
def test_predictions_save_what_was_measured_to_be_saved(
    batch: int, c: int, k: int, chain: tuple[str, ...], one: float, two: float
) -> None:
    alone = ConvProblem(
        batch, 7, 7, c, k, 1, 1, 7, 7, (0, 0, 0, 0), (1, 1), (1, 1), 1, DType.F16, DType.F16, chain
    )
    averaged = predict(replace(alone, chain=(*chain, "Mean")), 90)[1]
    apart = predict(alone, 90)[1] + pool_us(batch * 49 * k, batch * k, DType.F16, get(90))
    assert apart - averaged == pytest.approx(two - one, rel=0.5)


def test_a_frozen_lock_decides_alone() -> None:
    net, y = block()
    graph = prepare(net.model(mean(net, y)), "keep")
    decided = Timings(cuts=cover(graph, (90,)).cuts, frozen=True)
    assert [candidate.rule for candidate in cover(graph, (90,), timings=decided).candidates] == [
        f"{BLOCK}+Mean"
    ]
    with pytest.raises(
        FrozenError, match="lacks whether one kernel computes conv 32x7x7x512 to 2048"
    ):
        cover(graph, (90,), timings=Timings(frozen=True))


def test_another_plan_s_ends_are_kept() -> None:
    net, y = block()
    graph = prepare(net.model(mean(net, y)), "keep")
    assert [c.rule for c in cover_as(graph, (90,), {net.nodes[-1].output[0]})] == [f"{BLOCK}+Mean"]
    assert [c.rule for c in cover_as(graph, (90,), {y})] == [BLOCK]


@pytest.mark.parametrize("keepdims", [None, 0])
def test_no_pooling_is_left_and_the_answer_is_the_same(keepdims: int | None) -> None:
    net, y = block(c=64, k=256)
    means = mean(net, y, keepdims)
    model = net.model(
        net.linear(net.node("Flatten", means) if keepdims is None else means, 256, 10)
    )
    optimized = assert_same(model, limit=2e-3, precision="fp16", arch=90)
    assert any("Relu_Mean_f16" in op for op in ops(optimized))
    assert not any("Pool" in op for op in ops(optimized))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_means_that_drop_the_images_axes_are_compared_with_the_source_s(precision: str) -> None:
    for is_stored in (False, True):  # the images are an output, too
        net, y = block(c=64, k=256)
        model = net.model(mean(net, y, keepdims=0), *[y] * is_stored)
        report = onnxbolt.optimize(model, precision=precision, archs=("sm_90a",), library=False)
        assert report.passed
        assert any("+Mean" in row.rule for row in report.fused) != is_stored


def test_channels_that_are_no_whole_accesses_are_padded_or_stay_apart() -> None:
    net = Net({"x": (8, 64, 7, 7)})
    model = net.model(net.node("Flatten", mean(net, net.node("Relu", net.conv("x", 64, 30)))))
    assert_same(model, limit=2e-3, precision="fp16", arch=90)


def test_the_report_has_the_convolution_s_flops() -> None:
    net, y = block(c=64, k=256)
    report = onnxbolt.optimize(
        net.model(net.node("Flatten", mean(net, y))), archs=("sm_90a",), library=False
    )
    assert report.passed
    assert [
        (row.rule.removesuffix("+CastF32"), row.flops) for row in report.fused if row.flops
    ] == [(f"{BLOCK}+Mean", 2 * 32 * 49 * 64 * 256)]
