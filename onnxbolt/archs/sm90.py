"""Hopper. Reference GPU: NVIDIA H200 (SXM); an H100 differs in bandwidth alone (3.35 TB/s).

mma.sync reaches 62% of wgmma's rate: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking", 2024, section IV.
"""

from onnxbolt.archs.arch import Arch, Capability
from onnxbolt.dtypes import DType

ARCH = Arch(
    name="sm_90a",
    number=90,
    nvcc="90a",
    gpu="H200",
    sm_count=132,
    shared_memory_per_block=227 * 1024,
    shared_memory_per_sm=228 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=2048,
    clock=1.83e9,
    flops={
        DType.F16: 989e12,
        DType.BF16: 989e12,
        DType.F32: 494e12,
        DType.I8: 1979e12,
        DType.U8: 1979e12,
        DType.E4M3: 1979e12,
    },
    fp32_flops=67e12,
    bandwidth=4.8e12,
    l2_bandwidth=7.0e12,
    mma={
        DType.F16: (16, 8, 16),
        DType.BF16: (16, 8, 16),
        DType.F32: (16, 8, 8),
        DType.I8: (16, 8, 32),
        DType.U8: (16, 8, 32),
        DType.E4M3: (16, 8, 32),
    },
    mma_sync_share=0.62,
    capabilities=frozenset(
        {
            Capability.MMA_SYNC,
            Capability.CP_ASYNC,
            Capability.DEPENDENT_LAUNCH,
            Capability.CLUSTERS,
            Capability.TMA,
            Capability.WGMMA,
        }
    ),
    launch_us=1.5,
    heuristics_gpu="H200_SXM",
)
