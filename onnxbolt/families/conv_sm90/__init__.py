"""Convolutions on sm_90a as implicit GEMM: TMA's im2col, or tiled TMA where a convolution is a
GEMM.

Besides NHWC it writes y in three other ways:

- the mean over each image, [N, 1, 1, K]: a global average pooling behind the convolution is part
  of the epilogue. Each image has 64 rows of the product to itself, so that no sum leaves its
  warpgroup. The sums of warps use the shared memory that the formulas reserve for staging.
- NCHW, with any number of channels. `access_out` is 1, since y is stored pixel by pixel. Nothing is
  staged, and the ring gets the shared memory.
- both NHWC and NCHW, if both are read: rows are stored as for NHWC alone, and NCHW output from the
  same registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, tensor_operands
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import convolutions, sm90
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.nchw_output import in_rows
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.problems import ConvProblem

MAX_MEAN_PIXELS = 64  # pixels of an image that the epilogue averages


@dataclass(frozen=True, kw_only=True)
class ConvSm90Config(Sm90Config):
    """See Sm90Config."""


class ConvSm90(Family[ConvSm90Config]):
    """Serves convolutions whose rows TMA can read and write."""

    number, name, config = 6, "conv_sm90", ConvSm90Config
    most_mean_pixels = MAX_MEAN_PIXELS
    takes = ("element", "output", "epilogue", "stores")
    problems, kinds = (ConvProblem,), convolutions.KINDS
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[ConvSm90Config, ...]:
        if problem.inner or problem.nchw:
            return ()
        if MEAN in problem.chain:
            return self._averaging(problem, arch)
        if problem.y_nchw:
            return self._writing_nchw(problem, arch)
        return () if problem.depthwise else self._rows(problem, arch)

    def _rows(self, problem: ConvProblem, arch: Arch) -> tuple[ConvSm90Config, ...]:
        if not sm90.im2col_reaches(problem):
            return ()
        return sm90.candidates(ConvSm90Config, problem, arch, swizzle=1)

    def _averaging(self, problem: ConvProblem, arch: Arch) -> tuple[ConvSm90Config, ...]:
        """Configurations that average each image. Empty for larger images, and for cases that the
        GPU tests do not cover: groups, dilations, a second residual."""
        if problem.y_nchw or problem.depthwise or problem.chain[-1] != MEAN:
            return ()
        if not 1 <= problem.p * problem.q <= MAX_MEAN_PIXELS:
            return ()
        if problem.groups > 1 or problem.dilations != (1, 1) or tensor_operands(problem.chain) > 1:
            return ()
        return _unswapped(self._rows(_in_whole_blocks(problem), arch))

    def _writing_nchw(self, problem: ConvProblem, arch: Arch) -> tuple[ConvSm90Config, ...]:
        """Configurations that write NCHW. Empty for groups, whose channels are not padded; and,
        unless rows are written as well, for epilogues that add tensors, which are NHWC."""
        if problem.groups > 1:
            return ()
        found = _unswapped(self._rows(in_rows(problem), arch))
        if problem.both_forms:
            return found
        if tensor_operands(problem.chain):
            return ()
        return tuple(replace(config, access_out=1) for config in found)

    def shared_memory(self, kernel: Compiled) -> int:
        config, arch = kernel.config, get(kernel.config.arch)
        return sm90.shared_memory(config, kernel, arch, staged_in_rows=config.access_out > 1)

    def predicted_us(self, problem: ConvProblem, config: ConvSm90Config, arch: Arch) -> float:
        if problem.both_forms:
            alone = self.predicted_us(problem.in_rows, config, arch)
            return alone + sm90.nchw_output_us(problem, config, arch)
        # eight pixels of a channel are stored at once: half a sector for types of 16 bits
        if problem.y_nchw:
            problem = replace(problem, out=DType.F32)
        moved = memory_us(problem, arch)
        return sm90.predicted_us(_in_whole_blocks(problem), config, arch, moved)

    def terms(
        self, problem: ConvProblem, config: ConvSm90Config, arch: Arch
    ) -> Mapping[str, float]:
        return sm90.terms(_in_whole_blocks(problem), config, arch)

    def launches(self, config: ConvSm90Config) -> Sequence[Sequence[ConvSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]


def _unswapped(found: tuple[ConvSm90Config, ...]) -> tuple[ConvSm90Config, ...]:
    """All but swapped kernels, whose rows are channels."""
    return tuple(config for config in found if not config.swapped)


def _in_whole_blocks(problem: ConvProblem) -> ConvProblem:
    """The problem as the product sees it: 64 rows for each image if the epilogue ends with a
    mean."""
    return replace(problem, p=MAX_MEAN_PIXELS, q=1) if MEAN in problem.chain else problem
