"""Results that are used elsewhere end a kernel that cannot store them, and the report says what
that costs."""

from __future__ import annotations

from onnxbolt.candidates import Refusal
from onnxbolt.plan.cuts import cover
from tests.support import Net, prepare


def refusals(net: Net, *outputs: str, archs: tuple[int, ...] = (90,)) -> list[Refusal]:
    found = cover(prepare(net.model(*outputs), "fp16"), archs).refusals
    return [refusal for refusal in found if "has other consumers" in refusal.reason]


def layers(rows: int, *widths: int) -> tuple[Net, str, str]:
    net = Net({"x": (rows, widths[0])})
    inner = net.node("Relu", net.linear("x", widths[0], widths[1]))
    return net, inner, net.node("Relu", net.linear(inner, widths[1], widths[2]))


def test_a_graph_output_between_layers_is_reported_with_both_times() -> None:
    net, inner, y = layers(16384, 256, 60, 16)
    (refusal,) = refusals(net, y, inner)
    assert refusal.tensor == inner
    assert 0 < refusal.values["together_us"] < refusal.values["apart_us"]
    assert not refusals(net, y)


def test_a_second_reader_between_layers_is_reported() -> None:
    net, inner, y = layers(2048, 64, 28, 16)
    (refusal,) = refusals(net, y, net.node("Softmax", inner))
    assert refusal.op == "MatMul"
    assert set(refusal.values) == {"together_us", "apart_us"}


def test_where_no_kernel_could_have_both_nothing_is_said() -> None:
    net, inner, y = layers(128, 768, 3072, 768)
    assert not refusals(net, y, inner)
    net, inner, y = layers(16384, 256, 256, 256)
    assert not refusals(net, y, inner, archs=(80,))
