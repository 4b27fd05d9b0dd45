"""What ONNX Runtime's CUDA provider does with an epilogue: which steps it runs as kernels of
their own."""

from __future__ import annotations

import itertools

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MEAN
from onnxbolt.kernels.config import ConvProblem, GemmProblem

# Elementwise kernels that ONNX Runtime launches for a step, where not one: compositions that it has
# no fused kernel for.
_ORT_KERNELS = {"HardSwish": 2, "Mish": 3}
# A bias and the GELU behind it are one kernel (BiasGelu, FastGelu).
_ORT_BIAS_FUSED = ("GeluErf", "GeluTanh")
# In fp32 alone cuDNN and cuBLASLt kernels with these epilogues are used (FusedConv, Gemm with
# bias).
_ORT_FUSED_F32 = {
    "conv": (("Bias", "Add", "Relu"), ("Bias", "Relu"), ("Bias",)),
    "gemm": (("Bias",),),
}


def unfused_steps(problem: ConvProblem | GemmProblem) -> tuple[str, ...]:
    """The chain's steps that ONNX Runtime runs as kernels of their own."""
    chain = problem.chain
    if problem.dtype is DType.F32:
        for fused in _ORT_FUSED_F32["conv" if isinstance(problem, ConvProblem) else "gemm"]:
            if chain[: len(fused)] == fused:
                return chain[len(fused) :]
    fuses_bias = isinstance(problem, ConvProblem)  # the provider's option fuse_conv_bias
    kept = [
        step
        for step, after in itertools.pairwise((*chain, ""))
        if not (step == "Bias" and (fuses_bias or after in _ORT_BIAS_FUSED))
    ]
    return tuple(step for step in kept for _ in range(_ORT_KERNELS.get(step, 1)))


def tensors_moved(step: str) -> int:
    """Tensors of the output's size that a step's kernel reads and writes."""
    if step == MEAN:
        return 1
    return 3 if EPILOGUES[step].operand == "tensor" else 2
