"""A convolution and 1x1 convolutions behind it in one kernel on sm_90a (Bolt, section 3.1.1): the first one as its own family has it,
its result in the same block's registers or shared memory.
"""
from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.kernels import chain_conv, chain_first
from onnxbolt.kernels.config import ConvProblem, Family, KernelConfig


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration for a convolution with `inner` layers; empty where threadblock residence does not hold."""
    if problem.nchw:
        return chain_first.candidates(problem, arch)
    return chain_conv.candidates(problem, arch)


def columns(config: KernelConfig) -> tuple[int, ...]:
    """Channels of each layer that the kernel has, zeros included."""
    if config.family is Family.CHAIN_FIRST_SM90:
        return config.threadblock[1], config.instruction[2]
    return chain_conv.columns(config)
