"""A model's first convolution and a 1x1 convolution behind it in one kernel on sm_90a
(custom_ops/b2b_stem_sm90.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, layers
from onnxbolt.kernels import first
from onnxbolt.kernels.config import ConvProblem, Family, KernelConfig

COLUMNS = (16, 32, 48, 64, 80, 96, 112, 128)  # of either product
_LAYERS = 2
_ALIGNED = 1024 + 8  # bytes: weights begin at a multiple, and the barrier


def serves(widths: Sequence[int], chain: Sequence[str]) -> bool:
    """Whether layers of these channels, behind a first convolution that has a kernel, have one
    together."""
    tensors = any(EPILOGUES[step].operand == "tensor" for step in chain)
    return (
        len(widths) == _LAYERS
        and max(widths) <= COLUMNS[-1]
        and all(n % DType.F16.alignment == 0 for n in widths)
        and not tensors
    )


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The first convolution's configurations, `instruction` with the strides and the other's
    channels."""
    widths = (*problem.inner, problem.k)
    if not serves(widths, problem.chain):
        return ()
    inner, columns = (next(n for n in COLUMNS if n >= width) for width in widths)
    alone = replace(problem.layers[0], k=inner)
    configs = [
        replace(config, family=Family.B2B_STEM_SM90, instruction=(*problem.strides, columns))
        for config in first.configurations(alone, arch)
    ]
    return first.busiest([config for config in configs if _fits(config, problem, arch)])


def _fits(config: KernelConfig, problem: ConvProblem, arch: Arch) -> bool:
    """Beside the first convolution's: an operand and the accumulators that it is multiplied
    into; weights, inner vectors, a barrier."""
    inner, columns = config.threadblock[1], config.instruction[2]
    vectors = sum(EPILOGUES[step].operand == "vector" for step in layers(problem.chain)[0])
    own = inner * (columns * problem.dtype.bytes + vectors * 4) + _ALIGNED
    return first.fits(
        config,
        arch,
        first.registers(config, inner // 4 + columns // 2),
        first.shared_memory(config, columns) + own,
    )
