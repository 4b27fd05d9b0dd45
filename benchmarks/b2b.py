"""Layers in one kernel against one kernel per layer: the parts that b2b_gemm.py and b2b_conv.py
share (Bolt, section 4.1.3).

All sides run in CUDA graphs of their own of at least 0.2 ms, inputs, weights and outputs rotated
past the L2 cache; they take turns. Ours, one kernel or one for each layer, are what the tuner
chose, each launched behind the one before on its result; the library's pair is bare, or with its
bias and a kernel of PyTorch's for each ReLU. Our own kernels are the peer, unless the library's
bare ones are faster: then these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.common import Row
from benchmarks.library_layers import layers
from benchmarks.racing import Ours, Tuned, fastest, medians, serial, serial_of, take_turns
from onnxbolt.epilogues import PRODUCT
from onnxbolt.errors import OnnxboltError
from onnxbolt.inspection import describe
from onnxbolt.measurements.records import Status
from onnxbolt.plan.cost import floor_us, supports
from onnxbolt.problems import ConvProblem, GemmProblem

Chain = GemmProblem | ConvProblem
STEPS = ("Bias", "Relu")


def chain_of(products: int) -> tuple[str, ...]:
    """The steps of all layers, each with bias and ReLU."""
    return STEPS + (PRODUCT, *STEPS) * (products - 1)


@dataclass
class Apart:
    """The chosen kernels of a few layers each, launched one after the other, timed by the
    profiler."""

    problem: Chain
    kernels: Sequence[tuple[Ours, int]]  # with the number of their layers
    error: float = 0.0

    def measure(self, count: int, overlap: bool = True) -> list[float]:
        """The median of `count` samples, microseconds."""
        profiler = self.kernels[0][0].profiler
        parts: list[tuple[Any, Path, int]] = [
            (ours.config, ours.library, part) for ours, part in self.kernels
        ]
        measured = profiler.measure_apart(self.problem, parts, samples=count, overlap=overlap)
        if measured.status is not Status.OK:
            raise OnnxboltError(
                f"our own kernels one after the other failed: {measured.status.value},"
                f" {measured.detail}"
            )
        self.error = measured.error
        return [measured.us]

    def measure_serial(self, count: int) -> list[float]:
        """The median as `measure` returns it, with each launch starting after the previous one has
        ended."""
        return self.measure(count, overlap=False)


def versus_apart(
    name: str, batch: int, problem: Chain, library: str, target: float, tuned: Tuned
) -> Row:
    """One kernel for all layers against one for each; `target` is the gain that it should have."""
    if not supports(problem, tuned.arch.number):
        raise OnnxboltError("there is no kernel for these layers together")
    one = tuned.kernel(problem)
    apart = Apart(problem, [(tuned.kernel(layer), 1) for layer in problem.layers])
    bare, full = (
        layers(problem, epilogue) if peers.pytorch() else {} for epilogue in (False, True)
    )
    theirs = {f"bare, {form}": operation.measure() for form, operation in bare.items()}
    theirs |= {f"bias and ReLU, {form}": operation.measure() for form, operation in full.items()}
    serially = serial_of({"one, serial": one, "apart, serial": apart})
    samples = take_turns({"one": one.measure, "apart": apart.measure, **serially, **theirs})
    mine, times = samples["one"], medians(samples)
    least = {
        kind: fastest({form: samples[form] for form in theirs if form.startswith(kind)})
        for kind in ("bare", "bias")
        if theirs
    }
    peer_us, serial_peer, peer = (
        times["apart"],
        times.get("apart, serial"),
        "our own kernels, one for each layer",
    )
    if least and (bare_us := times[least["bare"]]) < peer_us:
        peer_us, peer = (
            bare_us,
            f"{peers.library(library, bare)}, bare: faster than ours, one for each layer",
        )
    serial_peer = min(serial_peer, times[least["bare"]]) if least and serial_peer else serial_peer
    values = {
        "layers": len(problem.layers),
        "target": target,
        "apart_us": times["apart"],
        "tried": times,
        "apart_configs": [describe(ours.config) for ours, _ in apart.kernels],
        "apart_error": float(f"{apart.error:.3e}"),
        **serial(samples.get("one, serial"), serial_peer),
        **tuned.notes(problem),
    }
    if least:
        full_us = times[least["bias"]]
        values |= {
            "bare_us": times[least["bare"]],
            "full_us": full_us,
            "full_ratio": round(full_us / mine.median, 3),
        }
    return Row(
        name,
        batch,
        "fp16",
        round(mine.median, 3),
        peer,
        peer_us,
        round(peer_us / mine.median, 3),
        round(floor_us(problem, tuned.arch), 3),
        round(mine.spread, 4),
        values=values,
        **one.facts,
    )
