"""The arithmetic that docs/decisions/quantized.md plans for kernels, in numpy, beside that of ONNX
Runtime, which computes the QDQ graph in fp32.

    python -m tests.quantized.arithmetic     # prints how many codes differ, by ways to compute them
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

_PIXELS, _IMAGES = 28, 2
LAYERS = ((16, 32, 3), (128, 64, 3), (512, 64, 1), (512, 32, 3))  # input, output channels, filter


class Way(enum.Enum):
    """The ways to compute the codes of a convolution."""

    INTEGERS = "zero point in integers, results divided by their scale"
    RECIPROCAL = "zero point in integers, results multiplied by the scale's reciprocal"
    IN_BIAS = "zero point in a bias of fp32"


class Fault(enum.Enum):
    """Faults that a kernel might have."""

    ZERO_POINT = "the zero point of x is one more"
    BORDER = "the zero point counts taps outside of the image, too"
    PAIR = "the pair within is left out"
    CHANNEL = "the scale of one channel is a fiftieth too large"
    TRUNCATED = "codes are not rounded to nearest"
    SATURATION = "codes beyond the range wrap around"


@dataclass(frozen=True)
class Case:
    """relu(requantized(conv(x) + bias) + residual) as codes of uint8. `one_sided`: codes of x lie
    near their zero point, and weights have mostly one sign."""

    channels: int
    results: int
    filter: int
    one_sided: bool
    seed: int

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """Codes, scales, zero points and bias, by the names of the graph's constants."""
        rng = np.random.default_rng(self.seed)
        shape = (_IMAGES, self.channels, _PIXELS, _PIXELS)
        weights = rng.standard_normal((self.results, self.channels, self.filter, self.filter))
        if self.one_sided:
            x, zero = np.rint(rng.standard_normal(shape) * 6 + 130), 130
            weights = weights * 30 + 60
        else:
            x, zero = rng.integers(0, 256, shape).astype(np.float64), int(rng.integers(1, 255))
            weights = weights * 40
        w = np.clip(np.rint(weights), -127, 127).astype(np.int8)
        x = np.clip(x, 0, 255).astype(np.uint8)
        scales = rng.uniform(0.005, 0.1), rng.uniform(0.0005, 0.01, self.results)
        found: dict[str, Any] = {"x": x, "w": w, "zx": np.uint8(zero)}
        found |= {"sx": np.float32(scales[0]), "sw": scales[1].astype(np.float32)}
        unit = float(found["sx"]) * found["sw"].astype(np.float64).reshape(-1, 1, 1)
        sums = unit * _conv(x.astype(np.float64) - zero, w)
        found["b"] = (rng.standard_normal(self.results) * sums.std()).astype(np.float32)
        largest = np.abs(sums + found["b"].reshape(-1, 1, 1)).max()
        found["sc"], found["zc"] = np.float32(largest / 120), np.uint8(128)
        found["r"] = rng.integers(0, 256, sums.shape).astype(np.uint8)
        found["sr"], found["zr"] = np.float32(largest / 170), np.uint8(117)
        found["sy"], found["zy"] = np.float32(largest / 200), np.uint8(rng.integers(0, 60))
        return found

    @property
    def steps(self) -> int:
        """The steps of the result that one step of the pair within may make."""
        return math.ceil(self.numbers["sc"] / self.numbers["sy"])

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The QDQ graph, whose inputs are x and the residual r."""
        nodes: list[tuple[str, str, str, dict[str, Any]]] = [
            ("DequantizeLinear", "x sx zx", "xf", {}),
            ("DequantizeLinear", "w sw", "wf", {"axis": 0}),
            ("Conv", "xf wf b", "c", {"pads": [self.filter // 2] * 4}),
            ("QuantizeLinear", "c sc zc", "cq", {}),
            ("DequantizeLinear", "cq sc zc", "cf", {}),
            ("DequantizeLinear", "r sr zr", "rf", {}),
            ("Add", "cf rf", "a", {}),
            ("Relu", "a", "p", {}),
            ("QuantizeLinear", "p sy zy", "y", {}),
        ]
        made = [helper.make_node(op, i.split(), [o], o, **attrs) for op, i, o, attrs in nodes]
        given = {name: self.numbers[name] for name in ("x", "r")}
        constants = [
            numpy_helper.from_array(np.asarray(values), name)
            for name, values in self.numbers.items()
            if name not in given
        ]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.UINT8, values.shape)
            for name, values in given.items()
        ]
        y = helper.make_tensor_value_info("y", TensorProto.UINT8, given["r"].shape)
        graph = helper.make_graph(made, "case", inputs, [y], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    @cached_property
    def onnxruntime(self) -> np.ndarray:
        """The codes of the QDQ graph, without ONNX Runtime's own fusions."""
        return _run(self.model, {name: self.numbers[name] for name in ("x", "r")})

    def codes(self, way: Way, fault: Fault | None = None) -> np.ndarray:
        """The codes as a kernel computes them: sums of integers, which begin at what the zero
        point of x adds to the taps inside of the image, then fp32."""
        n, one = self.numbers, np.float32(1)
        raw = _conv(n["x"].astype(np.float64), n["w"])  # as int32: below 2^31
        inside = _conv(np.ones(n["x"].shape), n["w"])
        if fault is Fault.BORDER:
            inside = np.broadcast_to(n["w"].sum((1, 2, 3), dtype=float)[:, None, None], raw.shape)
        offset = (int(n["zx"]) + (fault is Fault.ZERO_POINT)) * inside
        unit = (n["sx"] * n["sw"]).reshape(-1, 1, 1)
        if fault is Fault.CHANNEL:
            unit[3] *= np.float32(1.02)
        bias = n["b"].reshape(-1, 1, 1)
        if way is Way.IN_BIAS:
            value = raw.astype(np.float32) * unit + (bias - offset.astype(np.float32) * unit)
        else:
            value = (raw - offset).astype(np.float32) * unit + bias

        def rounded(values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
            steps = values * (one / scale) if way is Way.RECIPROCAL else values / scale
            whole = (np.trunc if fault is Fault.TRUNCATED else np.rint)(steps) + int(zero)
            if fault is Fault.SATURATION:
                return whole.astype(np.int64).astype(np.uint8)
            return np.clip(whole, 0, 255).astype(np.uint8)

        def read(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
            return (codes.astype(np.float32) - np.float32(zero)) * scale

        if fault is not Fault.PAIR:
            value = read(rounded(value, n["sc"], n["zc"]), n["sc"], n["zc"])
        value = np.maximum(value + read(n["r"], n["sr"], n["zr"]), np.float32(0))
        return rounded(value, n["sy"], n["zy"])


def _conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A convolution that keeps the image's size, padded with zeros; exact for integers."""
    r = w.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (r // 2, r // 2), (r // 2, r // 2)))
    size = x.shape[2]
    total = np.zeros((x.shape[0], w.shape[0], size, size))
    for i in range(r):
        for j in range(r):
            window = padded[:, :, i : i + size, j : j + size]
            total += np.einsum("nchw,kc->nkhw", window, w[:, :, i, j] * 1.0, optimize=True)
    return total


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, feeds)
    return y


def differing(case: Case, way: Way) -> tuple[int, int, int]:
    """The number of codes, of those that differ from ONNX Runtime's, and the largest distance."""
    apart = np.abs(case.codes(way).astype(np.int64) - case.onnxruntime.astype(np.int64))
    return apart.size, int(np.count_nonzero(apart)), int(apart.max())


def main() -> None:
    for one_sided in (False, True):
        print("one-sided" if one_sided else "random")
        for layer in LAYERS:
            cases = [Case(*layer, one_sided, seed) for seed in range(6)]
            for way in Way:
                rows = [differing(case, way) for case in cases]
                count, differ, _ = np.sum(rows, axis=0)
                most = max(row[2] for row in rows)
                share = 1e4 * differ / count
                print(f"  {layer}: {share:.2f} of 10,000 differ, by up to {most}: {way.value}")


if __name__ == "__main__":
    main()
