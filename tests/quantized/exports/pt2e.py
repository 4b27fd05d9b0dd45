"""PyTorch's quantization of exported programs (pt2e of torchao), by two of its quantizers.

    python -m tests.quantized.exports.pt2e

Needs torch==2.13.0, torchvision, torchao and onnxscript.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

from tests.quantized.exports import nets, store


def _x86() -> Any:
    """uint8 by int8."""
    config = x86.get_default_x86_inductor_quantization_config()
    return x86.X86InductorQuantizer().set_global(config)


def _xnnpack() -> Any:
    """int8 with zero points by int8."""
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack.XNNPACKQuantizer().set_global(config)


QUANTIZERS: dict[str, Callable[[], Any]] = {"x86": _x86, "xnnpack": _xnnpack}


def main() -> None:
    for name in store.SHAPES:
        inputs = nets.inputs(name)
        for form, quantizer in QUANTIZERS.items():
            exported = torch.export.export(nets.net(name), (inputs[0],)).module()
            prepared = prepare_pt2e(exported, quantizer())
            for x in inputs:
                prepared(x)
            program = torch.onnx.export(convert_pt2e(prepared), (inputs[0],), dynamo=True)
            store.write(program.model_proto, f"{name}.pt2e.{form}")
    store.tell("pt2e", "torch", "torchao", "onnxscript")


if __name__ == "__main__":
    main()
