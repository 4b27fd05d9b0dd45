"""GPU architectures as facts: limits, tensor-core shapes and peak rates; one file per SM, no logic.

Rates are the data sheet's dense ones for one reference GPU of the architecture. What a kernel
reaches of them is the cost model's business (plan/cost.py). Sources: CUDA C++ Programming Guide,
"Compute Capabilities" (limits), the PTX ISA (MMA shapes), and the data sheet or architecture
whitepaper of the GPU named in `gpu` (rates).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError

Shape = tuple[int, int, int]


# one object per architecture: identity is equality, and caches can key on it
@dataclass(frozen=True, eq=False)
class Arch:
    """One streaming-multiprocessor generation, with the GPU that stands for it in predictions."""

    name: str  # "sm_90a", as the command line and nvcc spell it
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
    wgmma: bool  # warpgroup MMA and TMA: CUTLASS 3.x kernels
    cp_async: bool  # asynchronous copies to shared memory: more than two stages
    launch_us: float  # fixed cost of a kernel in a stream that is kept full, microseconds

    def supports(self, dtype: DType) -> bool:
        """Whether tensor cores multiply `dtype`."""
        return dtype in self.flops

    def rate(self, dtype: DType) -> float:
        """FLOP/s of products: the tensor cores', or, for a type that they lack, the CUDA cores'."""
        return self.flops.get(dtype, self.fp32_flops)


def _load() -> dict[int, Arch]:
    modules = (importlib.import_module(f"{__name__}.sm{number}") for number in (75, 80, 86, 89, 90))
    return {module.ARCH.number: module.ARCH for module in modules}


ARCHS: dict[int, Arch] = _load()


def get(number: int) -> Arch:
    """The architecture with `number` (75, 80, 86, 89, 90). Raises InputError for any other."""
    try:
        return ARCHS[number]
    except KeyError:
        known = ", ".join(arch.name for arch in ARCHS.values())
        raise InputError(
            f"onnxbolt has no kernels for architecture {number}; choose one of {known}"
        ) from None
