"""A GPU for the stage, and ONNX Runtime's times, without either."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import onnx

from onnxbolt.measurements.timings import Comparison, Timings
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.regions import Region
from onnxbolt.tune.baseline import Bench
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import WholeModel
from tests.support import Net
from tests.tune import fakes


def net() -> onnx.ModelProto:
    """A chain of three GEMMs, two of them alike, too wide for one kernel."""
    net = Net({"x": (512, 528)})
    y = "x"
    for n in (528, 528, 544):
        y = net.node("Relu", net.linear(y, 528, n))
    return net.model(y)


class Gpu:
    """The machine that the stage finds: a GPU whose kernels are fast, and ONNX Runtime's time for
    each region."""

    def __init__(self) -> None:
        self.clock = fakes.Clock()
        self.profilers: list[Any] = []
        self.interrupt_after: int | None = None
        self.compared: list[tuple[int, float]] = []  # regions, budget
        self.settled: list[float] = []  # deadlines
        self.ort_us = 1e6
        self.interrupts_comparison = False

    def profiler(self, arch: int) -> Any:
        gpu = self

        class Profiler(fakes.Profiler):
            machine = dataclasses.replace(fakes.MACHINE, arch=arch)

            def __enter__(self) -> Profiler:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        self.profilers.append(Profiler(gpu.clock, interrupt_after=gpu.interrupt_after))
        return self.profilers[-1]

    def compare(
        self,
        regions: Sequence[Region],
        original: onnx.ModelProto,
        precision: str,
        bench: Bench,
    ) -> dict[str, Comparison]:
        budget = bench.deadline - time.monotonic()
        self.compared.append((len(regions), budget))
        if self.interrupts_comparison and budget > 0:
            raise KeyboardInterrupt
        return {
            region.key: Comparison(10.0, 0.1, self.ort_us, 0.1, region=region.description)
            for region in regions
        }

    def settle(
        self,
        subject: Subject,
        archs: Sequence[int],
        fuse: str,
        timings: Timings,
        chosen: Plan,
        bench: Bench,
    ) -> tuple[Plan, WholeModel | None]:
        self.settled.append(bench.deadline)
        return chosen, WholeModel(10.0, self.ort_us)

    @property
    def measured(self) -> int:
        return sum(len(profiler.measured) for profiler in self.profilers)
