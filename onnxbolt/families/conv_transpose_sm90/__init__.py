"""Transposed convolutions on sm_90a: an implicit GEMM with the channels of all phases of pixels as
columns, which each go to their pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.epilogues import gates, rotates, tensor_operands
from onnxbolt.families.base import FLAG, Compiled, Family
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.families.row import at
from onnxbolt.problems import ConvProblem, ConvTranspose3dProblem, ConvTransposeProblem

_Problem = ConvTransposeProblem | ConvTranspose3dProblem
# operations for each output beside those of an epilogue that TMA stores: its place, for 16 bytes
_PLACES = 1.0


@dataclass(frozen=True, kw_only=True)
class ConvTransposeSm90Config(Sm90Config):
    """See Sm90Config. `slices`: an image of x makes several of y."""

    slices: bool = at("instruction_n", default=False, numbers=FLAG)


class ConvTransposeSm90(Family[ConvTransposeSm90Config]):
    """Serves transposed convolutions whose rows TMA can read, and whose channels are whole
    accesses; of volumes those whose slices make slices of y of their own."""

    number, name, config = 30, "conv_transpose_sm90", ConvTransposeSm90Config
    problems = (ConvTransposeProblem, ConvTranspose3dProblem)
    kinds = frozenset({"conv_transpose", "conv_transpose1d", "conv_transpose3d"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: _Problem, arch: Arch) -> tuple[ConvTransposeSm90Config, ...]:
        convolution = problem.convolution
        channels, access = problem.k // problem.groups, 16 // problem.out.bytes
        if channels % max(access, problem.dtype.alignment) or not sm90.im2col_reaches(convolution):
            return ()
        if gates(problem.chain) or rotates(problem.chain):
            return ()
        apart = _apart(convolution, problem.phases)
        whole = [] if tensor_operands(problem.chain) else [convolution]
        unlike = any(problem.zeros)  # phases have unlike numbers of taps
        slices = problem.slices_of_y > 1
        found = [
            replace(config, slices=slices)
            for form in (whole + [apart] * unlike or [apart])
            for config in sm90.candidates(ConvTransposeSm90Config, form, arch, swizzle=1)
            if not config.swapped
            # a block with resident weights has one column of tiles, however short its loops are
            and not (config.resident and unlike and config.columns < problem.columns)
        ]
        return tuple(dict.fromkeys(found))

    def shared_memory(self, kernel: Compiled) -> int:
        arch = get(kernel.config.arch)
        return sm90.shared_memory(kernel.config, kernel, arch, staged_in_rows=True)

    def predicted_us(self, problem: _Problem, config: ConvTransposeSm90Config, arch: Arch) -> float:
        """That of the convolution, without the taps at which all phases of a tile meet zeros, and
        with the time of finding places."""
        moved = memory_us(problem, arch)
        places = _PLACES * problem.rows * problem.columns
        found = places / sm90.LANES / sm90.CLOCKS_PER_US / arch.sm_count
        share = 1.0 if config.split_k > 1 else _taps_share(problem, config.columns)
        return sm90.predicted_us(problem.convolution, config, arch, moved, share) + found

    def launches(
        self, config: ConvTransposeSm90Config
    ) -> Sequence[Sequence[ConvTransposeSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]


def _taps_share(problem: _Problem, width: int) -> float:
    """The share of the taps that tiles of `width` columns multiply, in the mean."""
    if not any(problem.zeros):
        return 1.0
    channels, columns = problem.k // problem.groups, problem.columns // problem.groups
    shares = []
    for start in range(0, columns, width):
        last = min(start + width, columns) - 1
        phases = range(start // channels, last // channels + 1)
        first = map(min, zip(*map(problem.first_tap, phases), strict=True))
        taps = (count - begin for count, begin in zip(problem.taps, first, strict=True))
        shares.append(math.prod(taps) / math.prod(problem.taps))
    return sum(shares) / len(shares)


def _apart(convolution: ConvProblem, phases: int) -> ConvProblem:
    """The convolution with each phase as a group, so that a tile's columns have one phase: where
    the epilogue reads tensors."""
    groups, c = convolution.groups * phases, convolution.c * phases
    return replace(convolution, groups=groups, c=c)
