"""Squeeze-and-excitation in NHWC, on any architecture: the mean, both products and the gate in one
kernel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig
from onnxbolt.problems import SqueezeExciteProblem

_MOST_CHANNELS = 8192  # channels whose means fit a block's shared memory on every architecture
_US = 1e6
_FIXED_US = 5.0  # exchange between blocks, barriers, first accesses
_IMAGES = 2  # images that share a load of the weights
_BANDWIDTH = 0.5  # part of device memory's bandwidth that one block per SM reaches
_CLUSTER = 8  # the most blocks that compute an image, each on an SM (plan.h)


@dataclass(frozen=True, kw_only=True)
class SqueezeExciteConfig(OneKernelConfig):
    """See OneKernelConfig."""


class SqueezeExcite(Family[SqueezeExciteConfig]):
    """One kernel for each element type, pair of activations and epilogue, whatever the shape."""

    number, name, config = 10, "squeeze_excite", SqueezeExciteConfig
    takes = ("element", "functors")
    problems, kinds = (SqueezeExciteProblem,), frozenset({"squeeze_excite"})
    fixed = ANY_ACCESS
    tensor_cores = False

    def candidates(
        self, problem: SqueezeExciteProblem, arch: Arch
    ) -> tuple[SqueezeExciteConfig, ...]:
        """The one configuration; none for too many channels."""
        if problem.c + problem.s > _MOST_CHANNELS:
            return ()
        return (SqueezeExciteConfig(arch=arch.number),)

    def shared_memory(self, kernel: Compiled) -> int:
        return get(kernel.config.arch).shared_memory_per_block

    def predicted_us(
        self, problem: SqueezeExciteProblem, config: SqueezeExciteConfig, arch: Arch
    ) -> float:
        """Small images take the time in which blocks wait for one another; a few large ones that
        of the few SMs that read them."""
        weights = 2 * problem.s * problem.c * problem.dtype.bytes * problem.n / _IMAGES
        busy = problem.n * (_CLUSTER if arch.has(Capability.CLUSTERS) else 1) / arch.sm_count
        image = problem.bytes_moved / min(_BANDWIDTH * arch.bandwidth, busy * arch.l2_bandwidth)
        return arch.launch_us + _FIXED_US + (image + weights / arch.l2_bandwidth) * _US
