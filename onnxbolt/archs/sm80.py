"""Ampere, data center. Reference GPU: NVIDIA A100 (SXM4, 40 GB)."""

from onnxbolt.archs.arch import Arch, Capability
from onnxbolt.dtypes import DType

ARCH = Arch(
    name="sm_80",
    number=80,
    nvcc="80",
    gpu="A100",
    sm_count=108,
    shared_memory_per_block=163 * 1024,
    shared_memory_per_sm=164 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=2048,
    clock=1.41e9,
    flops={
        DType.F16: 312e12,
        DType.BF16: 312e12,
        DType.F32: 156e12,
        DType.I8: 624e12,
        DType.U8: 624e12,
    },
    fp32_flops=19.5e12,
    bandwidth=1.555e12,
    l2_bandwidth=4.4e12,
    mma={
        DType.F16: (16, 8, 16),
        DType.BF16: (16, 8, 16),
        DType.F32: (16, 8, 8),
        DType.I8: (16, 8, 32),
        DType.U8: (16, 8, 32),
    },
    mma_sync_share=1.0,
    capabilities=frozenset({Capability.MMA_SYNC, Capability.CP_ASYNC}),
    launch_us=2.5,
    heuristics_gpu="A100_SXM_80GB",
)
