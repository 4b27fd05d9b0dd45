"""Convolutions that write y as ONNX has it, [N, K, P, Q] with any number of channels: what a region
of channels last ends with.

CONV_SM90 and HALO_SM90 have this form of their epilogues (custom_ops/sm90/planes.h,
custom_ops/halo/planes.h): `align_c` is 1, since y is stored pixel by pixel. CONV_SM90 stages
nothing then, and its ring gets the shared memory; HALO_SM90 stages values as it always does.

Where others read the result with its channels last, one kernel writes both forms
(`ConvProblem.both_forms`): CONV_SM90 stores rows as ever, and planes from the registers that these
came from. HALO_SM90 was slower with two epilogues at every shape that was measured.
"""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.integers import round_up
from onnxbolt.kernels import halo, sm90
from onnxbolt.kernels.config import ConvProblem, KernelConfig


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that write `problem`'s y as planes; empty for groups, whose channels
    are not padded, and, but for those that write rows as well, for epilogues that add tensors,
    which have their channels last."""
    if problem.groups > 1:
        return ()
    # TMA stores rows, planes are stored one by one
    k = problem.k if problem.both_forms else round_up(problem.k, problem.dtype.alignment)
    rows = replace(problem, k=k, y_nchw=False, padding=0)
    # rows of swapped tiles are channels
    products = tuple(config for config in sm90.candidates(rows, arch) if not config.instruction[0])
    if problem.both_forms:
        return products
    adds_tensors = any(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    return (
        ()
        if adds_tensors
        else tuple(
            replace(config, align_c=1) for config in (*halo.candidates(rows, arch), *products)
        )
    )
