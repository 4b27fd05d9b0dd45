"""Snake activations: forms that are recognized, near misses, and what is written where no kernel
takes one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from tests.support import Net, run

CHANNELS, LENGTH = 32, 40
Build = Callable[[Net, str], str]


def _constants(net: Net, channels: int = CHANNELS) -> tuple[str, str]:
    """a and 1 / a."""
    a = net.rng.uniform(0.5, 2.0, (1, channels, 1)).astype(np.float32)
    return net.const(a), net.const(1 / a)


def _plain(net: Net, x: str) -> str:
    a, inverse = _constants(net)
    square = net.node("Pow", net.node("Sin", net.node("Mul", a, x)), net.const(2.0))
    return net.node("Add", x, net.node("Mul", inverse, square))


def _turned(net: Net, x: str) -> str:
    """Factors and summands the other way around, and a sine times itself."""
    a, inverse = _constants(net)
    sine = net.node("Sin", net.node("Mul", x, a))
    return net.node("Add", net.node("Mul", net.node("Mul", sine, sine), inverse), x)


def _of_one(net: Net, x: str) -> str:
    """One frequency for all channels."""
    sine = net.node("Sin", net.node("Mul", x, net.const(0.5)))
    square = net.node("Pow", sine, net.const(2.0))
    return net.node("Add", x, net.node("Mul", net.const(2.0), square))


FORMS: dict[str, Build] = {"plain": _plain, "turned": _turned, "one frequency": _of_one}


def source_of(build: Build, length: int | str = LENGTH) -> onnx.ModelProto:
    """A block of a vocoder: the activation between two convolutions, and a residual."""
    net = Net({"x": (2, CHANNELS, length)})
    first = net.node("Conv", "x", net.normal(CHANNELS, CHANNELS, 3, scale=0.1), pads=[1, 1])
    second = net.node(
        "Conv", build(net, first), net.normal(CHANNELS, CHANNELS, 3, scale=0.1), pads=[1, 1]
    )
    return net.model(net.node("Add", first, second))


def _optimized(out: Path, source: onnx.ModelProto, precision: str) -> onnxbolt.Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _compare(out: Path, source: onnx.ModelProto, tolerance: float) -> None:
    x = np.random.default_rng(0).normal(0, 1, (2, CHANNELS, LENGTH)).astype(np.float32)
    (ours,), (theirs,) = run(out, {"x": x}), run(source, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("length", [LENGTH, "length"])
@pytest.mark.parametrize("form", FORMS)
def test_halves_of_snake_are_computed_where_the_convolutions_are(
    form: str, length: int | str, tmp_path: Path
) -> None:
    """In fp16 and NHWC: no Cast and no change of layout but at the graph's ends."""
    source, out = source_of(FORMS[form], length), tmp_path / "out.onnx"
    report = _optimized(out, source, "fp16")
    assert report.passed
    assert not [refusal for refusal in report.kept if "angle" in refusal.reason]
    left = Counter(node.op_type for node in onnx.load(out).graph.node if not node.domain)
    assert left == {"Mul": 3, "Sin": 1, "Add": 1}
    _compare(out, source, 2e-2)


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_one_that_has_more_channels_than_x_stays(precision: str, tmp_path: Path) -> None:
    net = Net({"x": (1, 1, 16, 16)})
    x = net.node("Conv", "x", net.normal(1, 1, 3, 3), pads=[1] * 4)
    frequency, factor = (net.const(np.linspace(0.5, 2, 16).reshape(1, 16, 1, 1)) for _ in "ac")
    sine = net.node("Sin", net.node("Mul", x, frequency))
    square = net.node("Mul", net.node("Mul", sine, sine), factor)
    y = net.node("Conv", net.node("Add", x, square), net.normal(16, 16, 3, 3), pads=[1] * 4)
    report = _optimized(tmp_path / "out.onnx", net.model(y), precision)
    assert report.passed
    assert not any("snake" in line for line in report.changes)


def test_one_of_a_large_frequency_stays(tmp_path: Path) -> None:
    """In 16 bits its angle would overflow."""
    net = Net({"x": (2, 64, 32)})
    x = net.node("Conv", "x", net.normal(64, 64, 3), pads=[1] * 2)
    sine = net.node("Sin", net.node("Mul", x, net.const(500.0)))
    square = net.node("Mul", net.node("Mul", sine, sine), net.const(0.002))
    report = _optimized(tmp_path / "out.onnx", net.model(net.node("Add", x, square)), "fp16")
    assert not any("snake" in line for line in report.changes)


@pytest.mark.parametrize("precision", ["keep", "bf16"])
def test_other_types_are_verified(precision: str, tmp_path: Path) -> None:
    source, out = source_of(_plain), tmp_path / "out.onnx"
    assert _optimized(out, source, precision).passed
    _compare(out, source, 1e-5 if precision == "keep" else 1e-1)


def test_the_original_nodes_stay_where_nothing_moves_them(tmp_path: Path) -> None:
    net = Net({"x": (2, CHANNELS, LENGTH)})
    source = net.model(_plain(net, "x"))
    _optimized(tmp_path / "out.onnx", source, "keep")
    assert list(onnx.load(tmp_path / "out.onnx").graph.node) == list(source.graph.node)


def _cubed(net: Net, x: str) -> str:
    a, inverse = _constants(net)
    cube = net.node("Pow", net.node("Sin", net.node("Mul", a, x)), net.const(3.0))
    return net.node("Add", x, net.node("Mul", inverse, cube))


def _of_another(net: Net, x: str) -> str:
    """The angle is that of another tensor."""
    a, inverse = _constants(net)
    square = net.node(
        "Pow", net.node("Sin", net.node("Mul", a, net.node("Tanh", x))), net.const(2.0)
    )
    return net.node("Add", x, net.node("Mul", inverse, square))


def _steep(net: Net, x: str) -> str:
    """The sine is multiplied by more than what the angle was divided by."""
    square = net.node("Pow", net.node("Sin", net.node("Mul", x, net.const(100.0))), net.const(2.0))
    return net.node("Add", x, net.node("Mul", net.const(1.0), square))


def _read_again(net: Net, x: str) -> str:
    """Others read the sine."""
    a, inverse = _constants(net)
    sine = net.node("Sin", net.node("Mul", x, a))
    square = net.node("Mul", inverse, net.node("Pow", sine, net.const(2.0)))
    return net.node("Mul", net.node("Add", x, square), sine)


@pytest.mark.parametrize("build", [_cubed, _of_another, _steep, _read_again])
def test_sines_of_other_forms_stay_in_fp32(build: Build, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", source_of(build), "fp16")
    assert report.passed
    assert [kept for kept in report.kept if "angle" in kept.reason]
