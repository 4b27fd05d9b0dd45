"""A stem convolution and a 1x1 convolution behind it in one kernel on sm_90a."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, fits_several, layers, tensor_operands
from onnxbolt.families.base import Compiled, Family, Stem, positive
from onnxbolt.families.blocks import stem
from onnxbolt.families.blocks.memory import vector_operands
from onnxbolt.families.blocks.staging import BARRIER
from onnxbolt.families.blocks.stem import StemConfig, is_served
from onnxbolt.families.row import at
from onnxbolt.integers import round_up
from onnxbolt.problems import ConvProblem

COLUMNS = (16, 32, 48, 64, 80, 96, 112, 128)  # columns of either product
_LAYERS = 2
_ALIGNED = 1024 + 8  # bytes for the weights' alignment and the barrier


@dataclass(frozen=True, kw_only=True)
class B2bStemSm90Config(StemConfig):
    """Beside a `StemConfig`: channels of the 1x1 convolution."""

    later_columns: int = at("instruction_k", sound=positive)  # type: ignore[misc]


class B2bStemSm90(Family[B2bStemSm90Config]):
    """Serves two layers without residuals."""

    number, name, config = 16, "b2b_stem_sm90", B2bStemSm90Config
    takes = ("element", "output", "layers")
    problems, kinds = (ConvProblem,), frozenset({"conv", "conv_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})
    fixed = stem.FIXED_SLOTS

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[B2bStemSm90Config, ...]:
        if not problem.inner or not problem.nchw or problem.y_nchw or MEAN in problem.chain:
            return ()
        if not fits_several(problem.chain) or not serves(problem.widths, problem.chain):
            return ()
        inner, columns = (next(n for n in COLUMNS if n >= width) for width in problem.widths)
        alone = _first(problem, inner)
        found = stem.configurations(B2bStemSm90Config, alone, arch, later_columns=columns)
        return stem.busiest([config for config in found if _fits(config, problem, arch)])

    def shared_memory(self, kernel: Compiled) -> int:
        config, (inner, last) = kernel.config, layers(kernel.chain)
        columns, size = config.later_columns, kernel.dtype.bytes
        first = round_up(stem.block_bytes(config, kernel.out, last, columns), 1024)
        weights = config.columns * columns * size
        return first + weights + vector_operands(inner) * config.columns * 4 + BARRIER

    def predicted_us(self, problem: ConvProblem, config: B2bStemSm90Config, arch: Arch) -> float:
        return stem.predicted_us(problem, config, arch)

    def reads_nchw(self, stem: Stem) -> bool:
        several = len(stem.widths) > 1
        return several and serves(stem.widths, stem.steps) and is_served(stem)


def serves(widths: Sequence[int], steps: tuple[str, ...]) -> bool:
    """True if there is one kernel for a stem convolution that this package serves and layers with
    these channels behind it."""
    whole = all(n % DType.F16.alignment == 0 for n in widths)
    few = len(widths) == _LAYERS and max(widths) <= COLUMNS[-1]
    return few and whole and not tensor_operands(steps)


def _first(problem: ConvProblem, channels: int) -> ConvProblem:
    """The stem convolution by itself, with padded output channels."""
    return dataclasses.replace(problem.layers[0], k=channels)


def _fits(config: B2bStemSm90Config, problem: ConvProblem, arch: Arch) -> bool:
    """True if registers and shared memory suffice. Beyond the stem convolution's own needs, these
    are an operand and its product's accumulators, and weights, inner vectors and a barrier."""
    inner, columns = config.columns, config.later_columns
    vectors = vector_operands(layers(problem.chain)[0])
    own = inner * (columns * problem.dtype.bytes + vectors * 4) + _ALIGNED
    of_thread = stem.registers(config, inner // 4 + columns // 2)
    return stem.fits(config, arch, of_thread, stem.shared_memory(config, columns) + own)
