"""A model's stem convolution on sm_90a: few channels, read from NCHW without a layout
conversion."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.epilogues import MEAN
from onnxbolt.families.base import Compiled, Family, Stem
from onnxbolt.families.blocks import stem
from onnxbolt.families.blocks.stem import StemConfig, is_served
from onnxbolt.problems import ConvProblem, StemCodesProblem

_FIXED = {**stem.FIXED_SLOTS, "instruction_k": 1}


@dataclass(frozen=True, kw_only=True)
class StemSm90Config(StemConfig):
    """See StemConfig."""


class StemSm90(Family[StemSm90Config]):
    """Serves filters of up to 11x11 on up to 4 channels."""

    number, name, config = 8, "stem_sm90", StemSm90Config
    problems, kinds = (ConvProblem, StemCodesProblem), frozenset({"conv"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})
    fixed = _FIXED

    def candidates(
        self, problem: ConvProblem | StemCodesProblem, arch: Arch
    ) -> tuple[StemSm90Config, ...]:
        if not problem.nchw or problem.inner or MEAN in problem.chain:
            return ()
        found = stem.configurations(StemSm90Config, problem, arch)
        return stem.busiest(
            [
                config
                for config in found
                if stem.fits(config, arch, stem.registers(config), stem.shared_memory(config))
            ]
        )

    def shared_memory(self, kernel: Compiled) -> int:
        return stem.block_bytes(kernel.config, kernel.out, kernel.chain, kernel.config.columns)

    def predicted_us(
        self, problem: ConvProblem | StemCodesProblem, config: StemSm90Config, arch: Arch
    ) -> float:
        return stem.predicted_us(problem, config, arch)

    def reads_nchw(self, stem: Stem) -> bool:
        return len(stem.widths) == 1 and is_served(stem)
