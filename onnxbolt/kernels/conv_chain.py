"""A convolution and 1x1 convolutions behind it in one kernel (Bolt, section 3.1.1): the first one
as its own family has it, its result in the same block's registers or shared memory.
"""

from __future__ import annotations

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_LAYERS, fits_several
from onnxbolt.kernels import chain as gemm_chain
from onnxbolt.kernels import chain_conv, chain_conv_2x, chain_first, chain_halo, chain_stored
from onnxbolt.kernels.config import ConvProblem, Family, KernelConfig

_MOST_INNER, _MOST_LAST = 256, 512  # channels


def serves(dtype: DType, widths: tuple[int, ...], chain: tuple[str, ...]) -> bool:
    """Whether there may be a kernel for layers with these channels and this chain of steps:
    residuals may stand behind the last one."""
    narrow = max(widths[:-1]) <= _MOST_INNER and widths[-1] <= _MOST_LAST
    return dtype.bytes == 2 and 2 <= len(widths) <= MAX_LAYERS and narrow and fits_several(chain)


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """Every feasible configuration for a convolution with `inner` layers; empty where
    threadblock residence does not hold, and where y is to have its channels first."""
    if problem.y_nchw:
        return ()
    if not fits_several(problem.chain):
        return chain_stored.candidates(problem, arch)
    if problem.nchw:
        return chain_first.candidates(problem, arch)
    return (
        *chain_halo.candidates(problem, arch),
        *chain_conv.candidates(problem, arch),
        *chain_conv_2x.candidates(problem, arch),
    )


def columns(config: KernelConfig) -> tuple[int, ...]:
    """Channels of each layer that the kernel has, zeros included."""
    if config.family is Family.B2B_STEM_SM90:
        return config.threadblock[1], config.instruction[2]
    return (
        chain_halo.columns(config)
        if config.family is Family.B2B_HALO_SM90
        else gemm_chain.columns(config)
    )
