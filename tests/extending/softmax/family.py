"""The kernel family of the softmax."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.families.base import Family, KernelConfig
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, bandwidth
from tests.extending.softmax.problem import ScaledSoftmaxProblem

_ROWS = (1, 2, 4, 8, 16, 32)
_LANES = 32
_STEP_US = 0.003  # time of a warp for one value in each of its lanes, all three passes
_BLOCKS, _WARPS = 32, 64  # blocks and warps that one SM runs at a time


@dataclass(frozen=True, kw_only=True)
class RowSoftmaxConfig(KernelConfig):
    """Rows of a block, each a warp's."""

    rows: int = at("tile_m", sound=lambda rows: rows in _ROWS)


class RowSoftmax(Family[RowSoftmaxConfig]):
    """On every architecture, for every type."""

    number, name, config = 1001, "row_softmax", RowSoftmaxConfig
    problems, kinds = (ScaledSoftmaxProblem,), frozenset({"scaled_softmax"})
    takes = ("element",)
    tensor_cores, waits = False, False

    def candidates(self, problem: ScaledSoftmaxProblem, arch: Arch) -> tuple[RowSoftmaxConfig, ...]:
        return tuple(RowSoftmaxConfig(arch=arch.number, rows=rows) for rows in _ROWS)

    def predicted_us(
        self, problem: ScaledSoftmaxProblem, config: RowSoftmaxConfig, arch: Arch
    ) -> float:
        """The memory's time, or that of the warps that an SM holds."""
        blocks = min(_BLOCKS, _WARPS // config.rows) * arch.sm_count
        waves = ceil_divide(ceil_divide(problem.m, config.rows), blocks)
        computing = waves * ceil_divide(problem.c, _LANES) * _STEP_US
        return arch.launch_us + max(computing, problem.bytes_moved / bandwidth(arch) * US)
