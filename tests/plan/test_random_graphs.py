"""Both plans of random small graphs: the better one is taken, computes each node once, and is made
again from its decisions."""

from __future__ import annotations

import dataclasses
import math
import random

import onnx
import pytest

from onnxbolt.measurements.timings import NOTHING
from onnxbolt.options import Options
from onnxbolt.tune.subject import Subject
from tests.support import Net

SEEDS = range(48)


class Images:
    """Convolutions with residuals, branches and poolings between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        size, channels = rng.choice([7, 14, 28]), rng.choice([16, 32, 64, 128])
        self.net = Net({"x": (rng.choice([1, 8, 32]), channels, size, size)})
        self.pool = [("x", channels, size)]  # tensors, their channels and sizes
        for _ in range(rng.randint(2, 7)):
            self.grow(*rng.choice(self.pool[-3:]))

    def grow(self, x: str, c: int, size: int) -> None:
        """Add a node that reads x."""
        net, rng = self.net, self.rng
        op = rng.choice(["1x1", "1x1", "3x3", "depthwise", "Relu", "Sigmoid", "Add", "Add", "Mul"])
        op = rng.choice([op, op, op, op, "Concat", "MaxPool", "LeakyRelu"])
        others = [y for y, *of in self.pool if of == [c, size] and y != x]
        if op == "1x1":
            k = rng.choice([16, 24, 30, 64, 128, 256])
            self.pool.append((net.conv(x, c, k), k, size))
        elif op in ("3x3", "depthwise"):
            k, group = (64, 1) if op == "3x3" else (c, c)
            self.pool.append((net.conv(x, c, k, 3, pads=[1] * 4, group=group), k, size))
        elif op in ("Relu", "Sigmoid", "LeakyRelu"):
            self.pool.append((net.node(op, x), c, size))
        elif op == "MaxPool" and size % 2 == 0:
            y = net.node(op, x, kernel_shape=[2, 2], strides=[2, 2])
            self.pool.append((y, c, size // 2))
        elif op == "Concat" and others:
            self.pool.append((net.node(op, x, rng.choice(others), axis=1), 2 * c, size))
        elif op in ("Add", "Mul") and others:
            self.pool.append((net.node(op, x, rng.choice(others)), c, size))

    def model(self) -> onnx.ModelProto:
        last, rng = self.pool[-1][0], self.rng
        outputs = [last, *([rng.choice(self.pool)[0]] if rng.random() < 0.4 else [])]
        outputs += [self.net.node("GlobalAveragePool", last)] if rng.random() < 0.4 else []
        return self.net.model(*(y for y in dict.fromkeys(outputs) if y != "x"))


class Rows:
    """Products with residuals, gates and normalizations between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        rows, width = rng.choice([16, 1280, 8192]), rng.choice([16, 64, 128, 256, 768])
        self.net = Net({"x": (rows, width), "r": (rows, width)})
        self.pool = [("x", width), ("r", width)]
        for _ in range(rng.randint(2, 8)):
            self.grow(*rng.choice(self.pool[-3:]))

    def grow(self, x: str, width: int) -> None:
        """Add a node that reads x."""
        net, rng = self.net, self.rng
        op = rng.choice(
            ["linear", "linear", "Relu", "Softmax", "Add", "Add", "Mul", "norm", "gate"]
        )
        others = [y for y, of in self.pool if of == width and y != x]
        if op in ("linear", "gate"):
            k = rng.choice([16, 64, 256, width, width])
            y = net.linear(x, width, k)
            if op == "gate":
                gate = net.node("Mul", y, net.node("Sigmoid", y))
                y = net.node("Mul", gate, net.linear(x, width, k))
            self.pool.append((y, k))
        elif op in ("Relu", "Softmax"):
            self.pool.append((net.node(op, x), width))
        elif op == "norm":
            scaled = net.node("LayerNormalization", x, net.normal(width), net.normal(width))
            self.pool.append((scaled, width))
        elif op in ("Add", "Mul") and others:
            self.pool.append((net.node(op, x, rng.choice(others)), width))

    def model(self) -> onnx.ModelProto:
        outputs = [self.pool[-1][0]]
        outputs += [self.rng.choice(self.pool)[0]] if self.rng.random() < 0.4 else []
        return self.net.model(*(y for y in dict.fromkeys(outputs) if y not in "xr"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [Images, Rows])
def test_the_better_plan_is_taken_and_repeated(kind: type[Images | Rows], seed: int) -> None:
    rng = random.Random(seed)
    model = kind(rng).model()
    archs, fuse = rng.choice([[90], [80], [80, 90]]), rng.choice(["winning", "all"])
    subject = Subject.of(model, Options(precision=rng.choice(["fp16", "bf16", "keep"])))
    plan = subject.plan(archs, fuse, NOTHING)
    assert plan.totals is not None
    assert plan.totals.dynamic_us <= plan.totals.greedy_us < math.inf
    assert (plan.totals.otherwise > 0) == (plan.totals.dynamic_us < plan.totals.greedy_us)
    computed = [node for candidate in plan.candidates for node in candidate.nodes]
    assert len(computed) == len(set(computed))
    rules = [candidate.rule for candidate in plan.candidates]
    for timings in (plan.used, dataclasses.replace(plan.used, frozen=True)):
        again = subject.again().plan(archs, fuse, timings)
        assert [candidate.rule for candidate in again.candidates] == rules
