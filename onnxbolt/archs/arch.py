"""An architecture as facts: limits, capabilities, tensor-core shapes and peak rates."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxbolt.dtypes import DType

Shape = tuple[int, int, int]

_NAME = re.compile(r"[a-z]\w{0,31}", re.ASCII)
_TARGET = re.compile(r"(?P<sm>[1-9]\d{1,2})(?P<own>[af]?)", re.ASCII)
LARGEST = 2**31 - 1  # number that a configuration's row holds


class Capability(enum.Enum):
    """An ability of an SM beyond plain CUDA. Kernel families name those that they need."""

    MMA_SYNC = "mma_sync"  # a warp multiplies fragments from its registers
    CP_ASYNC = "cp_async"  # threads copy to shared memory asynchronously: more than two stages
    DEPENDENT_LAUNCH = "dependent_launch"  # a kernel may begin before the previous one has ended
    CLUSTERS = "clusters"  # blocks of a cluster read each other's shared memory
    TMA = "tma"  # one thread copies a whole tile
    WGMMA = "wgmma"  # a warpgroup multiplies tiles in shared memory
    TCGEN05 = "tcgen05"  # one thread multiplies tiles in shared memory into tensor memory


# the first compute capability whose SMs have each capability
_SINCE = {
    Capability.MMA_SYNC: 75,
    Capability.CP_ASYNC: 80,
    Capability.DEPENDENT_LAUNCH: 90,
    Capability.CLUSTERS: 90,
    Capability.TMA: 90,
    Capability.WGMMA: 90,
    Capability.TCGEN05: 100,
}
# generations (major versions) that have what others do not keep, in code for them alone ("a", "f")
_ONLY = {Capability.WGMMA: (9,), Capability.TCGEN05: (10, 11)}


# one object per architecture: identity is equality, and caches can key on it
@dataclass(frozen=True, eq=False)
class Arch:
    """One streaming-multiprocessor generation, with the GPU that stands for it in predictions."""

    name: str  # "sm_90a", as the command line spells it
    number: int  # 90, as configurations carry it
    nvcc: str  # "90a": -gencode=arch=compute_<nvcc>,code=sm_<nvcc>
    gpu: str  # reference GPU of the figures below
    sm_count: int
    shared_memory_per_block: int  # bytes, with the opt-in attribute
    shared_memory_per_sm: int  # bytes
    registers_per_sm: int  # 32-bit registers
    registers_per_thread: int
    threads_per_sm: int
    clock: float  # Hz, at which the tensor-core rates below hold
    # tensor cores, fp32 accumulation, dense, FLOP/s; its keys are the supported types
    flops: Mapping[DType, float]
    fp32_flops: float  # CUDA cores, FLOP/s
    bandwidth: float  # device memory, byte/s
    l2_bandwidth: float  # L2 to all SMs, byte/s, as microbenchmarks measure it
    mma: Mapping[DType, Shape]  # mma.sync instruction (M, N, K)
    # part of `flops` that mma.sync can reach; below 1 where only wgmma reaches all
    mma_sync_share: float
    capabilities: frozenset[Capability]
    launch_us: float  # fixed cost of a kernel in a stream that is kept full, microseconds
    heuristics_gpu: str = ""  # the GPU's name in nvidia-matmul-heuristics, if it is known there

    def supports(self, dtype: DType) -> bool:
        """True if tensor cores multiply `dtype`."""
        return dtype in self.flops

    def rate(self, dtype: DType) -> float:
        """FLOP/s of products: the tensor cores', or, for a type that they lack, the CUDA cores'."""
        return self.flops.get(dtype, self.fp32_flops)

    def has(self, *capabilities: Capability) -> bool:
        """True if the SM has all of them."""
        return self.capabilities.issuperset(capabilities)

    @property
    def compute_capability(self) -> int:
        """The least compute capability, as 10 major + minor, that runs the code: 90 for "90a"."""
        return int(self.nvcc.rstrip("af"))

    @property
    def alone(self) -> bool:
        """True if code for this architecture runs on no later minor version of its generation."""
        return self.nvcc.endswith("a")

    def runs_on(self, compute_capability: int) -> bool:
        """True if a GPU with this compute capability (10 major + minor) runs code for it."""
        own = self.compute_capability
        if self.alone:
            return own == compute_capability
        return own // 10 == compute_capability // 10 and own <= compute_capability

    def check(self) -> None:
        """Raises ValueError for facts that no architecture has together."""
        if wrong := next(self._wrong(), None):
            raise ValueError(f"architecture {self.name!r}: {wrong}")

    def _wrong(self) -> Iterator[str]:
        if not _NAME.fullmatch(self.name):
            yield "a name is up to 32 small letters, digits and underscores, like sm_90a"
        if not 0 < self.number <= LARGEST:
            yield f"its number {self.number} is not from 1 to {LARGEST}"
        if not _TARGET.fullmatch(self.nvcc):
            yield f"nvcc={self.nvcc!r} is no target of nvcc, like 80 or 90a"
            return
        for capability in sorted(self.capabilities, key=lambda one: one.value):
            yield from self._missing(capability)
        if self.shared_memory_per_block > self.shared_memory_per_sm:
            yield "a block has more shared memory than an SM"
        if set(self.mma) != set(self.flops):
            yield "mma and flops name different types"
        amounts = (*self._amounts(), *self.flops.values())
        sound = all(math.isfinite(amount) and amount > 0 for amount in amounts)
        if not sound or not 0 < self.mma_sync_share <= 1:
            yield "amounts and rates are larger than zero and finite; mma_sync_share is at most 1"

    def _missing(self, capability: Capability) -> Iterator[str]:
        """The reason why code for `nvcc` cannot use a capability, if there is one."""
        generations = _ONLY.get(capability)
        kept = generations is None or (
            self.compute_capability // 10 in generations and not self.nvcc.isdigit()
        )
        if self.compute_capability < _SINCE[capability] or not kept:
            yield f"code for sm_{self.nvcc} cannot use {capability.value}"

    def _amounts(self) -> tuple[float, ...]:
        return (
            self.sm_count,
            self.shared_memory_per_block,
            self.registers_per_sm,
            self.registers_per_thread,
            self.threads_per_sm,
            self.clock,
            self.fp32_flops,
            self.bandwidth,
            self.l2_bandwidth,
            self.launch_us,
        )
