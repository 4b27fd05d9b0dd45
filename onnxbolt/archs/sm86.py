"""Ampere, graphics. Reference GPU: NVIDIA A10."""

from onnxbolt.archs.arch import Arch, Capability
from onnxbolt.dtypes import DType

ARCH = Arch(
    name="sm_86",
    number=86,
    nvcc="86",
    gpu="A10",
    sm_count=72,
    shared_memory_per_block=99 * 1024,
    shared_memory_per_sm=100 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=1536,
    clock=1.695e9,
    flops={
        DType.F16: 125e12,
        DType.BF16: 125e12,
        DType.F32: 62.5e12,
        DType.I8: 250e12,
        DType.U8: 250e12,
    },
    fp32_flops=31.2e12,
    bandwidth=600e9,
    l2_bandwidth=2.3e12,
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
    heuristics_gpu="RTX_3090",
)
