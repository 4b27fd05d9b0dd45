"""Formulas of a kernel's time that our kernels and those of ONNX Runtime's libraries share: the
parts of a GPU's peak rates that they reach, and the overlap of computing and memory."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch

US = 1e6
EFFICIENCY = 0.90  # part of the data sheet's bandwidth that a copy reaches
_OVERLAP_LOSS = 0.3  # part of the shorter of (compute, memory) that is not hidden behind the longer

# for kernels that give each block one tile
TENSOR_EFFICIENCY = 0.80  # part of the data sheet's rate that long main loops sustain
SHARED_BYTES_PER_CLOCK = 128  # one SM's shared memory, reads and writes together
PROLOGUE_US = 0.8  # a tile's index arithmetic and first loads
EPILOGUE_US = 0.5  # a tile's staging through shared memory and last store


@dataclass(frozen=True)
class TileTime:
    """Microseconds of one tile."""

    mainloop: float
    epilogue: float


def bandwidth(arch: Arch) -> float:
    """Bytes per second that a copy reaches."""
    return arch.bandwidth * EFFICIENCY


def overlapped(compute: float, memory: float, loss: float = _OVERLAP_LOSS) -> float:
    """The longer of both times, plus the part of the shorter one that is not hidden behind it."""
    return max(compute, memory) + loss * min(compute, memory)


def sm_us(tiles: int, resident: float, tile: TileTime) -> float:
    """Microseconds of an SM that works through `tiles`: with several `resident`, the epilogue of
    one hides behind the main loop of another."""
    shorter, longer = sorted((tiles * tile.mainloop, tiles * tile.epilogue))
    return longer + shorter / min(resident, tiles)
