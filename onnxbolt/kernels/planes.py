"""Convolutions that write y as ONNX has it, [N, K, P, Q] with any number of channels: what a region of channels last ends with.

CONV_SM90 and HALO_SM90 have this form of their epilogues (custom_ops/sm90/planes.h, custom_ops/halo/planes.h): `align_c` is 1, since y is
stored pixel by pixel. Nothing is staged in shared memory, so that what the formulas of both families leave for it lies idle.
"""
from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.kernels import halo, sm90
from onnxbolt.kernels.config import ConvProblem, KernelConfig


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that write `problem`'s y; empty for groups, whose channels are not padded, and for epilogues that add
    tensors, which have their channels last."""
    if problem.groups > 1 or any(EPILOGUES[step].operand == "tensor" for step in problem.chain):
        return ()
    alignment = problem.dtype.alignment
    stored = replace(problem, k=-(-problem.k // alignment) * alignment, y_nchw=False)
    products = (config for config in sm90.candidates(stored, arch) if not config.instruction[0])  # of swapped ones rows are channels
    return tuple(replace(config, align_c=1) for config in (*halo.candidates(stored, arch), *products))
