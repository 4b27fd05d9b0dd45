"""Models with codes of fp8 load in plain ONNX Runtime, which has no Transpose for fp8 and moves
others across QuantizeLinear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from onnxbolt import optimize
from onnxbolt.dtypes import DType
from onnxbolt.graph.importer import load_model
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import kernels
from tests.support import Net

_FP8 = DType.E4M3.numpy


def _gated() -> ModelProto:
    """A gate for each channel, whose codes are read as values that are an output, too."""
    net = Net({"x": (2, 16, 8, 8), "gate": (2, 16, 1, 1)}, opset=19, seed=3)
    zero = net.const(0, _FP8)

    def pair(x: str) -> str:
        numbers = net.const(0.01), zero
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)

    def conv(x: str) -> str:
        weight = net.const(net.rng.standard_normal((16, 16, 1, 1)) * 50, _FP8)
        values = net.node("DequantizeLinear", weight, net.const(0.002), zero)
        return pair(net.node("Conv", pair(x), values))

    gate = conv("gate")
    gated = net.node("Mul", conv("x"), pair(net.node("Sigmoid", gate)))
    return net.model(gate, net.node("Add", "x", gated))


@pytest.mark.parametrize("config", [{}, {"session.disable_quant_qdq": "1"}], ids=["", "no_qdq"])
def test_transposes_stay_where_they_are(config: dict[str, str], tmp_path: Path) -> None:
    model, out = _gated(), tmp_path / "out.onnx"
    choices = {"library": False, "verify": False, "fuse": "all", "precision": "keep"}
    with kernels.registered():
        optimize(model, out, archs=("sm_90a",), **choices)  # type: ignore[arg-type]
    fused = load_model(out)
    assert any(node.op_type.startswith("FusedQuantizedConv") for node in fused.graph.node)
    onnx.checker.check_model(fused)
    options = ort.SessionOptions()
    for name, value in config.items():
        options.add_session_config_entry(name, value)
    session = ort.InferenceSession(fused.SerializeToString(), options, providers=[CPU])
    feeds = {v.name: np.ones(v.shape, np.float32) for v in session.get_inputs()}
    assert all(np.isfinite(values).all() for values in session.run(None, feeds))
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
