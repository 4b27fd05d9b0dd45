"""Brevitas: quantized layers of its own, exported as QCDQ (QuantizeLinear, Clip,
DequantizeLinear).

    python -m tests.quantized.exports.brevitas

Needs torch==2.13.0, brevitas, onnxoptimizer and onnxscript. Its other form, QONNX, has operators
that ONNX Runtime does not load.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import brevitas.nn as qnn
import torch
from brevitas.export import export_onnx_qcdq
from brevitas.quant import Int8WeightPerChannelFloat, Int8WeightPerTensorFloat, Int32Bias
from torch import Tensor, nn
from torch.nn import functional

from tests.quantized.exports import nets, store

WEIGHTS = {"channel": Int8WeightPerChannelFloat, "tensor": Int8WeightPerTensorFloat}
WIDTH = nets.WIDTH


class Cnn(nn.Module):  # type: ignore[misc]
    """A stem, a residual and a classifier."""

    def __init__(self, weight: type) -> None:
        super().__init__()
        own = {"weight_quant": weight, "bias_quant": Int32Bias, "return_quant_tensor": True}
        self.x = qnn.QuantIdentity(return_quant_tensor=True)
        self.stem = qnn.QuantConv2d(3, WIDTH, 3, stride=2, padding=1, **own)
        self.relus = nn.ModuleList(qnn.QuantReLU(return_quant_tensor=True) for _ in range(3))
        self.inner = qnn.QuantConv2d(WIDTH, WIDTH, 3, padding=1, **own)
        self.outer = qnn.QuantConv2d(WIDTH, WIDTH, 1, **own)
        self.sum = qnn.QuantEltwiseAdd(return_quant_tensor=True)
        self.classifier = qnn.QuantLinear(WIDTH, WIDTH, bias=True, **own)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.relus[0](self.stem(self.x(x)))
        block = self.relus[2](self.sum(self.outer(self.relus[1](self.inner(stem))), stem))
        mean = functional.adaptive_avg_pool2d(block.value, 1).flatten(1)
        return self.classifier(self.x(mean)).value


class Mlp(nn.Module):  # type: ignore[misc]
    """Three linear layers."""

    def __init__(self, weight: type) -> None:
        super().__init__()
        own = {"weight_quant": weight, "bias_quant": Int32Bias, "return_quant_tensor": True}
        self.layers = nn.Sequential(
            qnn.QuantIdentity(return_quant_tensor=True),
            qnn.QuantLinear(16, 32, bias=True, **own),
            qnn.QuantReLU(return_quant_tensor=True),
            qnn.QuantLinear(32, 32, bias=True, **own),
            qnn.QuantSigmoid(return_quant_tensor=True),
            qnn.QuantLinear(32, 16, bias=True, **own),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).value


KINDS: dict[str, Callable[[type], nn.Module]] = {"cnn": Cnn, "mlp": Mlp}


def main() -> None:
    for name, kind in KINDS.items():
        for form, weight in WEIGHTS.items():
            torch.manual_seed(0)
            net, inputs = kind(weight), nets.inputs(name)
            for x in inputs:
                net(x)
            net.eval()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "made.onnx")
                export_onnx_qcdq(net, inputs[0], str(path), dynamo=False)
                store.write(path, f"{name}.brevitas.{form}")
    store.tell("brevitas", "brevitas", "torch", "onnx")


if __name__ == "__main__":
    main()
