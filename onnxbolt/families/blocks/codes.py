"""Products of codes of 8 bits on sm_90a: the kernels of blocks/sm90.py with the operands, sums and
epilogue of codes (custom_ops/sm90/codes.h).

Results of 8 bits are stored 16 columns at a time. Tensor cores add up products of E4M3 with 14 bits
or so; the sums of each k-block are therefore added in fp32 (`partial_sums`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import tensor_operands, values_of
from onnxbolt.families.base import Compiled
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.families.row import at
from onnxbolt.problems import QuantizedConvProblem, QuantizedGemmProblem

_ACCESS = 16  # bytes of a row of values in multiples
_PAIRED = 16  # columns that are stored together where results have 8 bits
# the most elements along k whose sums tensor cores add up without fp32
_UNPROMOTED = 128


class Offsets(enum.IntEnum):
    """The offsets for the zero point of x that a kernel adds to its sums."""

    NONE = 0  # the zero point is 0
    BY_COLUMN = 1
    BY_PIXEL = 2  # by column and the pixel's class: the image is padded


class PartialSums(enum.IntEnum):
    """The sets of registers for sums of k-blocks, which are added to those of the tile in fp32."""

    NONE = 0  # tensor cores add up all k-blocks
    ONE = 1
    TWO = 2  # one is added while the products of the other are under way


# True once kernels with two sets of partial sums have passed their tests on a GPU: until then
# candidates have one set (docs/decisions/quantized.md)
TURNS_MEASURED = True

_OFFSETS = {offsets: int(offsets) for offsets in Offsets}
_PARTIAL_SUMS = {sets: int(sets) for sets in PartialSums}
# the most sums of a thread beside which there is room for two sets of partial sums, by consumer
# warpgroups; in kernels of clusters, and of convolutions that read tensors in their epilogue, 48
_BESIDE_TWO, _BESIDE_TWO_CROWDED = {1: 64, 2: 64, 3: 0}, 48


@dataclass(frozen=True, kw_only=True)
class CodesConfig(Sm90Config):
    """Beside an `Sm90Config`: the kernel's offsets, and how it adds up k-blocks."""

    offsets: Offsets = at("instruction_n", default=Offsets.NONE, numbers=_OFFSETS)
    partial_sums: PartialSums = at(  # type: ignore[misc]
        "warp_k", default=PartialSums.NONE, numbers=_PARTIAL_SUMS
    )

    def mismatched(self) -> list[str]:
        """No tile of codes is swapped."""
        return [*super().mismatched(), *(["swapped tiles"] if self.swapped else [])]


C = TypeVar("C", bound=CodesConfig)
Quantized = QuantizedGemmProblem | QuantizedConvProblem


def candidates(
    kind: type[C], problem: Quantized, arch: Arch, swizzle: int, offsets: Offsets
) -> Iterator[C]:
    """Every configuration for `problem`, each for all m; none where TMA cannot read or write its
    rows, or where the epilogue reads more tensors than come by TMA."""
    narrow, tensors = problem.out.bytes == 1, tensor_operands(problem.chain)
    if narrow and (problem.columns % _PAIRED or tensors > 1):
        return
    values = values_of(problem.chain)
    if values is not None and (tensors > 1 or problem.columns * values.bytes % _ACCESS):
        return
    for config in sm90.candidates(kind, problem, arch, swizzle):
        if narrow and config.columns // config.cluster[0] % _PAIRED:
            continue
        if not _promotes(config, problem):
            yield replace(config, offsets=offsets)
        elif config.k <= _UNPROMOTED and _has_room(config):
            turns = TURNS_MEASURED and takes_turns(config, problem)
            sets = PartialSums.TWO if turns else PartialSums.ONE
            yield replace(config, offsets=offsets, partial_sums=sets)


def _promotes(config: CodesConfig, problem: Quantized) -> bool:
    """True if sums are of floating point, and too long for tensor cores alone."""
    whole = sm90.k_blocks(config, problem) == 1 and config.k <= _UNPROMOTED
    return problem.dtype is DType.E4M3 and not whole


def _has_room(config: CodesConfig) -> bool:
    """True if a thread has registers for two sets of sums."""
    return 2 * sm90.accumulators(config) <= sm90.MAX_ACCUMULATORS[config.consumers]


def takes_turns(config: CodesConfig, problem: Quantized) -> bool:
    """True if a thread has registers for two sets of partial sums beside those of its tile."""
    sums = sm90.accumulators(config)
    reads_tensors = not problem.is_matrix and tensor_operands(problem.chain) > 0
    if (reads_tensors or config.cluster != (1, 1)) and sums > _BESIDE_TWO_CROWDED:
        return False
    return sums <= _BESIDE_TWO[config.consumers]


def shared_memory(kernel: Compiled, arch: Arch) -> int:
    """Bytes of a block of the compiled kernel."""
    return sm90.shared_memory(kernel.config, kernel, arch, staged_in_rows=True)


def predicted_us(problem: Quantized, config: CodesConfig, arch: Arch) -> float:
    """Microseconds of one launch."""
    return sm90.predicted_us(problem, config, arch, memory_us(problem, arch))
