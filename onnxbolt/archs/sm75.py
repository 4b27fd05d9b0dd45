"""Turing. Reference GPU: NVIDIA T4."""

from onnxbolt.archs.arch import Arch, Capability
from onnxbolt.dtypes import DType

ARCH = Arch(
    name="sm_75",
    number=75,
    nvcc="75",
    gpu="T4",
    sm_count=40,
    shared_memory_per_block=64 * 1024,
    shared_memory_per_sm=64 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=1024,
    clock=1.59e9,
    flops={
        DType.F16: 65e12,
        DType.I8: 130e12,
        DType.U8: 130e12,
    },
    fp32_flops=8.1e12,
    bandwidth=320e9,
    l2_bandwidth=1.27e12,
    mma={
        DType.F16: (16, 8, 8),
        DType.I8: (8, 8, 16),
        DType.U8: (8, 8, 16),
    },
    mma_sync_share=1.0,
    capabilities=frozenset({Capability.MMA_SYNC}),
    launch_us=3.0,
)
