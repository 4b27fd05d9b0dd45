"""Residuals between two layers whose sum nobody else reads: the end of an inverted residual
block and the next expansion, a skip between the layers of a perceptron. One kernel adds them and
stores nothing between the layers."""

from __future__ import annotations

import itertools

import onnx
import pytest

from onnxbolt.archs import get
from onnxbolt.candidates import Refusal
from onnxbolt.families import named
from onnxbolt.plan.cost import floor_us
from onnxbolt.plan.cuts import cover, segments
from tests.support import Net, assert_same, prepare


def found(
    net: Net, *outputs: str, archs: tuple[int, ...] = (90,)
) -> tuple[list[str], list[Refusal]]:
    """The rules of the candidates, and all refusals."""
    candidates, refusals, *_ = cover(prepare(net.model(*outputs), "fp16"), archs)
    return [candidate.rule.removesuffix("+CastF32") for candidate in candidates], refusals


def inverted(
    expanded: int = 120, c: int = 40, wider: int = 240, size: int = 28, batch: int = 32
) -> tuple[Net, str, str]:
    """The projection of a block with its residual, and the expansion of a block without one; the
    sum, and the result."""
    net = Net({"x": (batch, expanded, size, size), "r": (batch, c, size, size)})
    end = net.node("Add", net.conv("x", expanded, c), "r")
    return net, end, net.node("Relu", net.conv(end, c, wider))


def perceptron(rows: int, *widths: int, skips: tuple[int, ...] = (0,)) -> tuple[Net, str]:
    """Layers with a residual behind those of `skips`."""
    net = Net({"x": (rows, widths[0]), **{f"r{i}": (rows, widths[i + 1]) for i in skips}})
    y = "x"
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        y = net.linear(y, k, n)
        y = net.node("Relu", net.node("Add", y, f"r{i}") if i in skips else y)
    return net, y


@pytest.mark.parametrize(
    "shape", [(120, 40, 240, 28), (72, 24, 72, 56), (128, 256, 64, 14), (64, 256, 64, 56)]
)
def test_the_end_of_a_block_shares_a_kernel_with_the_expansion_behind_it(
    shape: tuple[int, int, int, int],
) -> None:
    net, _, y = inverted(*shape)
    assert found(net, y) == (["conv+Bias+Add+Gemm+Bias+Relu"], [])


@pytest.mark.parametrize("widths", [(256, 64, 16), (64, 128, 64), (128, 512, 128)])
def test_a_skip_between_layers_shares_a_kernel_with_both(widths: tuple[int, int, int]) -> None:
    net, y = perceptron(16384, *widths)
    assert found(net, y) == (["gemm+Bias+Add+Relu+Gemm+Bias+Relu"], [])
    assert found(net, y, archs=(80, 90))[0] == ["gemm+Bias+Add+Relu", "gemm+Bias+Relu"]


def test_what_is_not_stored_is_not_counted() -> None:
    net, end, y = inverted()
    alone, stored = (
        max(
            floor_us(problem, get(90))
            for problem in segments(prepare(net.model(*outputs), "fp16"), [90])
        )
        for outputs in ((y,), (y, end))
    )
    written = 32 * 28 * 28 * 40 * 2 / get(90).bandwidth * 1e6
    assert stored - alone == pytest.approx(written)


def test_layers_with_a_residual_each_are_cut_where_one_kernel_would_leave_one_out() -> None:
    net, y = perceptron(16384, 64, 128, 64, 32, skips=(0, 1))
    rules, (refusal,) = found(net, y)
    assert rules == ["gemm+Bias+Add+Relu", "gemm+Bias+Add+Relu+Gemm+Bias+Relu"]
    assert refusal.reason.endswith("and adds the residuals of both")


def test_where_both_sides_of_a_residual_could_take_it_only_one_tells_of_what_follows() -> None:
    net = Net({"x": (32, 64, 56, 56)})
    left, right = (
        net.conv("x", 64, 256),
        net.conv(net.node("Relu", net.conv("x", 64, 64, 3, pads=[1] * 4)), 64, 256),
    )
    end = net.node("Relu", net.node("Add", right, left))
    y = net.node("Relu", net.conv(end, 256, 64))
    rules, refusals = found(net, y, net.node("Softmax", end))
    assert rules == ["conv+Bias", "conv+Bias+Relu", "conv+Bias+Add+Relu+Store+Gemm+Bias+Relu"]
    assert not [refusal for refusal in refusals if "as decided before" in refusal.reason]


def test_what_follows_a_kernel_that_another_one_ends_begins_one_of_its_own() -> None:
    """Two kernels could take a residual Add; the longer one does, though it does not include the
    product behind it."""
    net = Net({"x": (32, 64, 56, 56)})
    left = net.conv("x", 64, 256, 3, pads=[1] * 4)
    for op in ("Sigmoid", "Relu", "Tanh") * 2:
        left = net.node(op, left)
    end = net.node("Relu", net.node("Add", left, net.conv("x", 64, 256)))
    rules, _ = found(net, net.node("Relu", net.conv(end, 256, 64)))
    assert rules == [
        "conv+Bias+Sigmoid+Relu+Tanh+Sigmoid+Relu+Tanh+Add+Relu",
        "conv+Bias",
        "conv+Bias+Relu",
    ]


def models() -> dict[str, tuple[Net, str]]:
    net, _, y = inverted(24, 16, 40, 9, 2)
    made = {"convolutions": (net, y)}
    net, _, y = inverted(24, 16, 20, 9, 2)
    made["padded"] = net, net.conv(y, 20, 16, 3, pads=[1] * 4)
    return made | {"rows": perceptron(50, 64, 128, 32)}


@pytest.mark.parametrize("name", models())
def test_bodies_compute_what_the_original_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # so few pixels take no longer together than apart
    monkeypatch.setattr("onnxbolt.families.b2b_stored_sm90._LAUNCH_US", 0.0)
    net, y = models()[name]
    optimized = assert_same(net.model(y), 2e-3, "fp16", arch=90)
    (node,) = [node for node in optimized.graph.node if "_Gemm_" in node.op_type]
    values = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    assert values["configs"][3] == named("b2b_stored_sm90").number
    assert "Add" in node.op_type.split("_Gemm_")[0]
    assert len(node.output) == 1
