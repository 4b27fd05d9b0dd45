"""A small attention between projections, of which tests replace parts, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from tests.support import Net

B, S, T, H, D = 2, 5, 7, 4, 8  # batch, queries, keys, heads, size
SCALE = D**-0.5
SOME, ALL = "some keys", "no key for a query"


class Form:
    """Attention between projections, of which tests replace parts. Inputs are x [B, S, H x D],
    context and values [B, T, H x D], the masks added [B, 1, S, T] and kept [B, 1, S, T], and
    padding [B, T], integers that are 1 for keys and 0 for padding."""

    opset = 17

    def __init__(self, batch: int | str = B) -> None:
        shapes: dict[str, Sequence[int | str]] = {
            "x": (batch, S, H * D),
            "context": (batch, T, H * D),
            "values": (batch, T, H * D),
            "added": (batch, 1, S, T),
            "kept": (batch, 1, S, T),
            "padding": (batch, T),
        }
        types: dict[str, int] = {"kept": TensorProto.BOOL, "padding": TensorProto.INT64}
        self.net = Net(shapes, opset=self.opset, types=types)
        self.outputs = list[str]()

    def ints(self, *values: int) -> str:
        return self.net.const(values, np.int64)

    def reshape(self, x: str, *shape: int) -> str:
        return self.net.node("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self.net.node("Transpose", x, perm=perm)

    def times(self, x: str, factor: float) -> str:
        return self.net.node("Mul", x, self.net.const(factor))

    def projected(self, x: str, positions: int) -> str:
        """[B, H, positions, D]."""
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.transpose(self.reshape(y, -1, positions, H, D), 0, 2, 1, 3)

    def q(self) -> str:
        return self.projected("x", S)

    def k(self) -> str:
        """Its transposition, [B, H, D, T]."""
        return self.transpose(self.projected("context", T), 0, 1, 3, 2)

    def v(self) -> str:
        return self.projected("values", T)

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return self.times(q, SCALE**0.5), self.times(k, SCALE**0.5)

    def masked(self, scores: str) -> str:
        return scores

    def weights(self, scores: str) -> str:
        return self.net.node("Softmax", scores, axis=-1)

    def output(self, y: str) -> str:
        return self.reshape(self.transpose(y, 0, 2, 1, 3), -1, S, H * D)

    def attended(self) -> str:
        q, k, v = self.q(), self.k(), self.v()
        scores = self.masked(self.net.node("MatMul", *self.scaled(q, k)))
        return self.output(self.net.node("MatMul", self.weights(scores), v))

    def model(self) -> onnx.ModelProto:
        y = self.attended()
        last = self.net.node("MatMul", y, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.net.model(last, *self.outputs)


def feeds(model: onnx.ModelProto, excluded: str) -> dict[str, np.ndarray]:
    """Random inputs; some keys are excluded, or all of one query and of one batch's padding."""
    rng = np.random.default_rng(1)
    kept = rng.random((B, 1, S, T)) < 0.7
    kept[:, :, :, 0] = True
    padding = (np.arange(T) < [[T], [T - 2]]).astype(np.int64)
    if excluded == ALL:
        kept[1, 0, 2] = False
        padding[1] = 0
    values = {
        "x": rng.standard_normal((B, S, H * D)).astype(np.float32),
        "context": rng.standard_normal((B, T, H * D)).astype(np.float32),
        "values": rng.standard_normal((B, T, H * D)).astype(np.float32),
        "added": np.where(kept, 0, -np.inf).astype(np.float32),
        "kept": kept,
        "padding": padding,
    }
    return {value.name: values[value.name] for value in model.graph.input}


def answers(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result: np.ndarray = session.run(None, given)[0]
    return result
