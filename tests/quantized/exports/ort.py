"""onnxruntime.quantization in the forms that tests/quantized/tools.py lacks: scales of histograms,
and those that are computed at run time.

    python -m tests.quantized.exports.ort

Needs onnxruntime alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.quantized.exports import store


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self._left = iter([{"x": x} for x in store.samples(name)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.onnx")
        for name in store.SHAPES:
            for method in (CalibrationMethod.Entropy, CalibrationMethod.Percentile):
                quantize_static(
                    store.floats(name),
                    made,
                    _Samples(name),
                    quant_format=QuantFormat.QDQ,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                    reduce_range=True,
                    calibrate_method=method,
                )
                store.write(made, f"{name}.ort.{method.name.lower()}")
            quantize_dynamic(store.floats(name), made)
            store.write(made, f"{name}.ort.dynamic")
    store.tell("ort", "onnxruntime", "onnx")


if __name__ == "__main__":
    main()
