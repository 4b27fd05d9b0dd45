"""A compiler and a GPU that take no time: kernels run as predicted, but for an error that is the
same whenever it is asked for."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.plan.cost import fused_us
from onnxbolt.problems import ConvProblem, GemmProblem, Problem
from onnxbolt.tune.library import Result, Uncompiled

# a 3x3 convolution of ResNet's second stage
CONV = ConvProblem(
    n=8,
    h=28,
    w=28,
    c=64,
    k=64,
    r=3,
    s=3,
    p=28,
    q=28,
    pads=(1, 1, 1, 1),
    strides=(1, 1),
    dilations=(1, 1),
    groups=1,
    dtype=DType.F16,
    out=DType.F16,
    chain=("Bias", "Relu"),
)
MACHINE = Machine("Fake", 90, 700, "13.0", "4.2", "digest")


class Clock:
    """Seconds that pass when something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Records:
    """A database in memory."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []

    def add(self, *measurements: Measurement) -> None:
        self.rows += measurements

    def measurements(self, key: str) -> list[Measurement]:
        return [row for row in self.rows if row.key == key]


class Builder:
    """Compiles at once; `refused` decides which kernels do not compile."""

    def __init__(self, refused: Callable[[Instance], bool] = lambda _: False) -> None:
        self.refused = refused
        self.compiled: list[Instance] = []

    def __call__(self, instances: Sequence[Instance], stop: threading.Event) -> Iterator[Result]:
        for instance in instances:
            self.compiled.append(instance)
            yield (
                instance,
                (
                    Uncompiled("spills")
                    if self.refused(instance)
                    else Path(f"{len(self.compiled)}.so")
                ),
            )


def true_us(problem: Problem, config: KernelConfig, spread: float = 0.2) -> float:
    """The time that a kernel "takes"; the same in every process. No error exceeds two spreads,
    which early stopping may miss."""
    error = random.Random(repr((problem, config.row()))).gauss(0.0, 1.0)
    return fused_us(problem, config, get(90)) * math.exp(0.1 + spread * max(-2.0, min(error, 2.0)))


class Profiler:
    """Each candidate takes `seconds` of the clock; `broken` ones fail, `interrupt_after`
    measurements Ctrl-C comes."""

    def __init__(
        self,
        clock: Clock,
        seconds: float = 0.1,
        spread: float = 0.2,
        broken: Collection[KernelConfig] = (),
        interrupt_after: int | None = None,
    ) -> None:
        self.clock, self.seconds, self.spread, self.broken, self.interrupt_after = (
            clock,
            seconds,
            spread,
            broken,
            interrupt_after,
        )
        self.measured: list[tuple[Problem, KernelConfig]] = []

    def begin(self) -> None:
        pass

    def measure(
        self, problem: Problem, candidates: Sequence[tuple[KernelConfig, Path]]
    ) -> list[Measurement]:
        if self.interrupt_after is not None and len(self.measured) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.clock.now += self.seconds * len(candidates)
        self.measured += [(problem, config) for config, _ in candidates]
        return [self._measurement(problem, config) for config, _ in candidates]

    def _measurement(self, problem: Problem, config: KernelConfig) -> Measurement:
        key = kernel_key(problem, MACHINE)
        if config in self.broken:
            return Measurement(key, config, Status.CRASHED, detail="SIGSEGV")
        return Measurement(key, config, Status.OK, true_us(problem, config, self.spread), 0.1, 50)


def gemm(
    m: int = 1280, n: int = 3072, k: int = 768, chain: tuple[str, ...] = ("Bias",)
) -> GemmProblem:
    return GemmProblem(m, n, k, DType.F16, DType.F16, chain)


def conv(
    size: int = 28, c: int = 128, k: int = 128, chain: tuple[str, ...] = ("Bias", "Relu")
) -> ConvProblem:
    return ConvProblem(
        32,
        size,
        size,
        c,
        k,
        3,
        3,
        size,
        size,
        (1, 1, 1, 1),
        (1, 1),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        chain,
    )


# as BERT-base and a few layers of ResNet-50 have them
MODEL = (
    48 * [gemm(1280, 768, 768)]
    + 12 * [gemm(1280, 3072, 768)]
    + 12 * [gemm(1280, 768, 3072)]
    + 3 * [conv()]
    + 2 * [conv(14, 256, 256)]
)
