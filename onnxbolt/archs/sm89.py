"""Ada Lovelace. Reference GPU: NVIDIA L4."""

from onnxbolt.archs.arch import Arch, Capability
from onnxbolt.dtypes import DType

ARCH = Arch(
    name="sm_89",
    number=89,
    nvcc="89",
    gpu="L4",
    sm_count=58,
    shared_memory_per_block=99 * 1024,
    shared_memory_per_sm=100 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=1536,
    clock=2.04e9,
    flops={
        DType.F16: 121e12,
        DType.BF16: 121e12,
        DType.F32: 60e12,
        DType.I8: 242e12,
        DType.U8: 242e12,
        DType.E4M3: 242e12,
    },
    fp32_flops=30.3e12,
    bandwidth=300e9,
    l2_bandwidth=2.2e12,
    mma={
        DType.F16: (16, 8, 16),
        DType.BF16: (16, 8, 16),
        DType.F32: (16, 8, 8),
        DType.I8: (16, 8, 32),
        DType.U8: (16, 8, 32),
        DType.E4M3: (16, 8, 32),
    },
    mma_sync_share=1.0,
    capabilities=frozenset({Capability.MMA_SYNC, Capability.CP_ASYNC}),
    launch_us=2.5,
    heuristics_gpu="L4",
)
