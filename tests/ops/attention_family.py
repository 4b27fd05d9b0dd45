"""A kernel family for attention without kernels, by which a model goes through all stages whose
nodes function bodies then compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.extensions import Extension
from onnxbolt.families.base import Family, KernelConfig, tile_size
from onnxbolt.families.row import at
from onnxbolt.kernel_time import US
from onnxbolt.problems import AttentionProblem


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(KernelConfig):
    """Queries of a block."""

    queries: int = at("tile_m", default=64, sound=tile_size)


class FakeAttention(Family[AttentionConfig]):
    """As fast as memory."""

    number, name, config = 1901, "fake_attention", AttentionConfig
    problems, kinds = (AttentionProblem,), frozenset({"attention"})
    takes = ("element",)

    def candidates(self, problem: AttentionProblem, arch: Arch) -> Sequence[AttentionConfig]:
        """One."""
        return (AttentionConfig(arch=arch.number),)

    def predicted_us(self, problem: AttentionProblem, config: AttentionConfig, arch: Arch) -> float:
        """Each tensor once."""
        return arch.launch_us + problem.bytes_moved / arch.bandwidth * US


EXTENSION = Extension(name="fake_attention", families=(FakeAttention(),))
