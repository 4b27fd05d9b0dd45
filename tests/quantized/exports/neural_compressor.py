"""Intel's Neural Compressor for ONNX Runtime, as QDQ and as operators on codes.

    python -m tests.quantized.exports.neural_compressor

Needs onnx-neural-compressor, neural-compressor, prettytable, psutil, py-cpuinfo, pydantic,
scikit-learn, schema, scipy and transformers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, quantize
from onnxruntime.quantization import QuantFormat, QuantType

from tests.quantized.exports import store


class _Samples(data_reader.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self._name = name
        self.rewind()

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)

    def rewind(self) -> None:
        self._left = iter([{"x": x} for x in store.samples(self._name)])


def main() -> None:
    for name in store.SHAPES:
        for form in ("QDQ", "QOperator"):
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder, "made.onnx")
                chosen = config.StaticQuantConfig(
                    calibration_data_reader=_Samples(name),
                    quant_format=QuantFormat[form],
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                )
                quantize(str(store.floats(name)), str(made), chosen)
                model = onnx.load(made)
                store.write(model, f"{name}.inc.{form.lower()}")
    store.tell("inc", "onnx-neural-compressor", "onnxruntime", "onnx")


if __name__ == "__main__":
    main()
