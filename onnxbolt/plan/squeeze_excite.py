"""Predicted microseconds of squeeze-and-excitation: small tensors, so that most of it is waiting
for one another."""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels.config import SqueezeExciteProblem

_US = 1e6
_FIXED_US = 5.0  # the exchange between blocks, barriers, first accesses
_IMAGES = 2  # that share a load of the weights
_BANDWIDTH = 0.5  # of device memory's, with one block to an SM
# ONNX Runtime: the mean, two products, each with bias and activation, and the gating
_LIBRARY_KERNELS, _LIBRARY_KERNEL_US, _LIBRARY_BANDWIDTH = 8, 1.0, 0.6


def fused_us(problem: SqueezeExciteProblem, arch: Arch) -> float:
    """Our kernel."""
    weights = 2 * problem.s * problem.c * problem.dtype.bytes * problem.n / _IMAGES
    return (
        arch.launch_us
        + _FIXED_US
        + (_size(problem) / (_BANDWIDTH * arch.bandwidth) + weights / arch.l2_bandwidth) * _US
    )


def ort_us(problem: SqueezeExciteProblem, arch: Arch) -> float:
    """What ONNX Runtime's CUDA provider takes for the same nodes: the image is read twice and
    written once."""
    moved = 1.5 * _size(problem) / (_LIBRARY_BANDWIDTH * arch.bandwidth) * _US
    return _LIBRARY_KERNELS * (arch.launch_us + _LIBRARY_KERNEL_US) + moved


def floor_us(problem: SqueezeExciteProblem, arch: Arch) -> float:
    """The image once in and once out of device memory."""
    return _size(problem) / arch.bandwidth * _US


def _size(problem: SqueezeExciteProblem) -> int:
    """Bytes of the image, in and out."""
    return 2 * problem.rows * problem.c * problem.dtype.bytes
