"""The kernel of squeeze-and-excitation in NHWC: one for each element type and pair of
activations, whatever the shape."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig, SqueezeExciteProblem

_THREADS = 256
_MOST_CHANNELS = 8192  # whose means fit a block's shared memory anywhere


def candidates(problem: SqueezeExciteProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The one configuration; none for too many channels."""
    return () if problem.c + problem.s > _MOST_CHANNELS else (config(arch.number),)


def config(arch: int) -> KernelConfig:
    """`threadblock` = (threads, 1, 1); how the work is divided is decided at launch."""
    return KernelConfig(
        arch, 0, UNBOUNDED, Family.SQUEEZE_EXCITE, (_THREADS, 1, 1), align_a=1, align_b=1, align_c=1
    )
