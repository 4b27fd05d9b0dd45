"""NVIDIA ModelOpt: int8 and fp8 of ONNX models, in models of fp32 and fp16, and of PyTorch's.

    python -m tests.quantized.exports.modelopt

Needs torch==2.13.0, nvidia-modelopt[onnx,torch], onnxscript and requests. Its fp8 of PyTorch models
has operators of TensorRT, which no ONNX Runtime loads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import modelopt.torch.quantization as mtq
import numpy as np
from modelopt.onnx.quantization import quantize
from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata
from torch import nn

from tests.quantized.exports import nets, store

OF_TORCH = {"int8": mtq.INT8_DEFAULT_CFG, "smoothquant": mtq.INT8_SMOOTHQUANT_CFG}


def of_onnx(name: str, mode: str, floats: str, folder: Path) -> None:
    made = folder / f"{name}.{mode}.{floats}.onnx"
    quantize(
        str(store.floats(name)),
        quantize_mode=mode,
        calibration_data={"x": np.concatenate(list(store.samples(name)))},
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype=floats,
        output_path=str(made),
        opset=19,
    )
    store.write(made, f"{name}.modelopt.{mode}.{floats}")


def of_torch(name: str, form: str, folder: Path) -> None:
    def calibrate(net: nn.Module) -> None:
        for x in nets.inputs(name):
            net(x)

    net = mtq.quantize(nets.net(name), OF_TORCH[form], calibrate)
    found, _ = get_onnx_bytes_and_metadata(
        net,
        (nets.inputs(name)[0],),
        model_name=name,
        weights_dtype="fp32",
        onnx_opset=20,
    )
    OnnxBytes.from_bytes(found).write_to_disk(str(folder), clean_dir=False)
    store.write(folder / f"{name}.onnx", f"{name}.modelopt.torch.{form}")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in store.SHAPES:
            for floats in ("fp32", "fp16"):
                for mode in ("int8", "fp8"):
                    of_onnx(name, mode, floats, folder)
            for form in OF_TORCH:
                of_torch(name, form, folder)
    store.tell("modelopt", "nvidia-modelopt", "torch", "onnx")


if __name__ == "__main__":
    main()
