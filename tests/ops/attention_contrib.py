"""Random calls of ONNX Runtime's operators of attention, between projections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.support import Net

DOMAIN = "com.microsoft"
MASKS = ("", "ends", "bounds", "keys", "scores")  # forms of mask_index and key_padding_mask
BIASES = ("", "one", "heads", "batch", "all")  # axes of attention_bias that are not 1


@dataclass(frozen=True)
class Call:
    """A call; `symbolic`: batch and lengths have names."""

    op: str = "Attention"
    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    queries: int = 5
    keys: int = 7
    size: int = 8
    value_size: int = 8
    mask: str = ""
    bias: str = ""
    vector: bool = True  # the projections' bias
    by_heads: bool = False  # keys and values [B, heads, T, D]
    packed: bool = False
    symbolic: bool = False
    window: int = 0
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Keys: as many as queries where both come from one input."""
        own = self.op != "MultiHeadAttention" or self.attrs.get("unidirectional")
        return self.queries if own else self.keys

    @property
    def width(self) -> int:
        return self.heads * self.size

    def model(self) -> onnx.ModelProto:
        b, s, t = (
            ("batch", "queries", "keys" if self.span != self.queries else "queries")
            if self.symbolic
            else (self.batch, self.queries, self.span)
        )
        shapes: dict[str, Any] = {"x": (b, s, self.width)}
        types = dict[str, int]()
        if self.op == "MultiHeadAttention":
            shapes["context"] = (b, t, self.width)
        if self.op == "GroupQueryAttention":
            shapes["padding"], types["padding"] = (b, s), TensorProto.INT32
        forms = {"ends": (b,), "bounds": (2 * self.batch,), "keys": (b, t), "scores": (b, s, t)}
        if self.mask:
            shapes["mask"], types["mask"] = forms[self.mask], TensorProto.INT32
        if self.bias:
            first = b if self.bias in ("batch", "all") else 1
            second = self.heads if self.bias in ("heads", "all") else 1
            shapes["bias"] = (first, second, s, t)
        net = Net(shapes, types=types)
        calls = {
            "Attention": self._packed,
            "GroupQueryAttention": self._grouped,
            "MultiHeadAttention": self._multi_head,
        }
        y = calls[self.op](net)
        return net.model(net.node("MatMul", y, net.normal(self.heads * self.value_size, 16)))

    def _projected(self, net: Net, x: str, width: int) -> str:
        return net.node("MatMul", x, net.normal(self.width, width, scale=self.width**-0.5))

    def _optional(self, name: str) -> str:
        return name if {"mask": self.mask, "bias": self.bias}[name] else ""

    def _packed(self, net: Net) -> str:
        widths = [self.width, self.width, self.heads * self.value_size]
        weight = net.normal(self.width, sum(widths), scale=self.width**-0.5)
        vector = net.normal(sum(widths)) if self.vector else ""
        sizes = {"qkv_hidden_sizes": widths} if self.value_size != self.size else {}
        inputs = ["x", weight, vector, self._optional("mask"), "", self._optional("bias")]
        more = {**sizes, **self.attrs, "num_heads": self.heads, "domain": DOMAIN}
        return net.node("Attention", *inputs, **more)

    def _multi_head(self, net: Net) -> str:
        q = self._projected(net, "x", self.width)
        k = self._projected(net, "context", self.width)
        v = self._projected(net, "context", self.heads * self.value_size)
        if self.by_heads:
            k, v = (self._split(net, x) for x in (k, v))
        total = 2 * self.width + self.heads * self.value_size
        vector = net.normal(total) if self.vector and not self.by_heads else ""
        inputs = [q, k, v, vector, self._optional("mask"), self._optional("bias")]
        more = {**self.attrs, "num_heads": self.heads, "domain": DOMAIN}
        return net.node("MultiHeadAttention", *inputs, **more)

    def _split(self, net: Net, x: str) -> str:
        shape = net.const([0, 0, self.heads, -1], np.int64)
        return net.node("Transpose", net.node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def _grouped(self, net: Net) -> str:
        narrow = self.key_heads * self.size
        if self.packed:
            inputs = [self._projected(net, "x", self.width + 2 * narrow), "", ""]
        else:
            inputs = [self._projected(net, "x", width) for width in (self.width, narrow, narrow)]
        window = {"local_window_size": self.window} if self.window else {}
        numbers = {"num_heads": self.heads, "kv_num_heads": self.key_heads}
        more = {**self.attrs, **window, **numbers, "domain": DOMAIN}
        last, total = self._lengths(net)
        return net.node("GroupQueryAttention", *inputs, "", "", last, total, **more)

    def _lengths(self, net: Net) -> tuple[str, str]:
        """The last key of each batch, and the number of all keys, as exporters compute them."""
        one, zero = (net.const(number, np.int32) for number in (1, 0))
        kept = net.node("Cast", net.node("Greater", "padding", zero), to=TensorProto.INT32)
        count = net.node("ReduceSum", kept, net.const([1], np.int64), keepdims=0)
        last = net.node("Max", net.node("Sub", count, one), zero)
        index = net.const(1, np.int64)
        total = net.node("Gather", net.node("Shape", "padding"), index, axis=0)
        return last, net.node("Cast", total, to=TensorProto.INT32)

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs. Some queries have no key, but not beside a bias: what ONNX Runtime
        answers then depends on the order in which -10000 and the bias are added and rounded."""
        rng = np.random.default_rng(seed)
        b, s, t = self.batch, self.queries, self.span
        drawn = {"x": rng.standard_normal((b, s, self.width)).astype(np.float32)}
        if self.op == "MultiHeadAttention":
            drawn["context"] = rng.standard_normal((b, t, self.width)).astype(np.float32)
        if self.op == "GroupQueryAttention":
            drawn["padding"] = rng.integers(0, 2, (b, s)).astype(np.int32)
        masks = {
            "ends": rng.integers(0, t + 2, b),
            "bounds": np.concatenate([rng.integers(1, t + 2, b), rng.integers(0, t + 2, b)]),
            "keys": rng.integers(-1, 3, (b, t)),
            "scores": rng.integers(-1, 3, (b, s, t)),
        }
        if self.bias:
            masks["ends"][:] = np.maximum(masks["ends"], 1)
            masks["bounds"][b:] = 0
            masks["keys"][:, 0] = masks["scores"][:, :, 0] = 1
        if self.mask:
            drawn["mask"] = masks[self.mask].astype(np.int32)
        if self.bias:
            first = b if self.bias in ("batch", "all") else 1
            second = self.heads if self.bias in ("heads", "all") else 1
            drawn["bias"] = rng.standard_normal((first, second, s, t)).astype(np.float32)
        return drawn
