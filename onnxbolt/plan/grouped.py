"""What cuDNN takes for grouped convolutions, against the same tiles without groups.

The factors were fitted to 15 layers of ResNeXt-50, RegNetX and RegNetY at batch 32 on one H200, in
the faster of both layouts (tests/plan/test_grouped.py holds them).
"""

from __future__ import annotations

from onnxbolt.kernels.config import ConvProblem

_OWN_KERNELS = (4, 8, 16, 32)  # channels of a group that cuDNN has kernels for
_OWN, _OTHER = 1.6, 3.5


def library_factor(problem: ConvProblem) -> float:
    """How many times longer than a convolution whose every output channel meets as many input
    channels."""
    if problem.groups == 1:
        return 1.0
    return _OWN if problem.depth in _OWN_KERNELS else _OTHER
