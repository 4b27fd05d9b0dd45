"""What ONNX Runtime's CUDA provider does with an epilogue: which steps it runs as kernels of
their own."""

from __future__ import annotations

import itertools

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, EPILOGUES, MEAN
from onnxbolt.problems import ConvProblem, GemmProblem

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
        for step, after in itertools.zip_longest(chain, chain[1:])
        if not (step == BIAS and (fuses_bias or (after and EPILOGUES[after].in_ort.with_bias)))
    ]
    return tuple(step for step in kept for _ in range(EPILOGUES[step].in_ort.kernels))


def tensors_moved(step: str) -> int:
    """Tensors of the output's size that a step's kernel reads and writes."""
    if step == MEAN:
        return 1
    return 3 if EPILOGUES[step].operand == "tensor" else 2
