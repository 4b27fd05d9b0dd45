"""Two architectures: Blackwell's graphics cards, and a part of Hopper that there is not.

sm_120 has neither wgmma nor tcgen05: the families of mma.sync serve it. Reference GPU: NVIDIA
GeForce RTX 5090 (limits: CUDA C++ Programming Guide, compute capability 12.0; rates: NVIDIA RTX
Blackwell GPU Architecture, appendix A).
"""

from __future__ import annotations

import dataclasses

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.extensions import Extension

BLACKWELL = Arch(
    name="sm_120",
    number=120,
    nvcc="120",
    gpu="RTX 5090",
    sm_count=170,
    shared_memory_per_block=99 * 1024,
    shared_memory_per_sm=100 * 1024,
    registers_per_sm=65536,
    registers_per_thread=255,
    threads_per_sm=1536,
    clock=2.407e9,
    flops={DType.F16: 209.5e12, DType.BF16: 209.5e12, DType.F32: 104.8e12},
    fp32_flops=104.8e12,
    bandwidth=1.792e12,
    l2_bandwidth=6.0e12,  # estimated, from those of sm_86 and sm_89
    mma={DType.F16: (16, 8, 16), DType.BF16: (16, 8, 16), DType.F32: (16, 8, 8)},
    mma_sync_share=1.0,
    capabilities=frozenset(
        {
            Capability.MMA_SYNC,
            Capability.CP_ASYNC,
            Capability.DEPENDENT_LAUNCH,
            Capability.CLUSTERS,
            Capability.TMA,
        }
    ),
    launch_us=2.0,
)

# an eighth of an H200, of smaller SMs; its code is Hopper's
EIGHTH = dataclasses.replace(
    get(90),
    name="eighth_90a",
    number=1090,
    gpu="an eighth of an H200",
    sm_count=16,
    shared_memory_per_block=131 * 1024,
    shared_memory_per_sm=132 * 1024,
    flops={dtype: rate / 8 for dtype, rate in get(90).flops.items()},
    fp32_flops=get(90).fp32_flops / 8,
    bandwidth=get(90).bandwidth / 8,
    l2_bandwidth=get(90).l2_bandwidth / 8,
)

EXTENSION = Extension(name="architectures", archs=(BLACKWELL, EIGHTH))
