"""The problems that kernels solve: plain data, with the shapes as they are stored.

Stages ask a problem through the interface in base.py and name no class. The names of these classes
and of their fields stand in the keys of measurements and in lock files.
"""

from __future__ import annotations

from onnxbolt.problems.attention import MAX_HEAD, AttentionProblem
from onnxbolt.problems.base import Problem, Reference
from onnxbolt.problems.conv import ConvProblem, StemCodesProblem
from onnxbolt.problems.conv3d import Conv3dProblem
from onnxbolt.problems.conv_transpose import ConvTranspose3dProblem, ConvTransposeProblem
from onnxbolt.problems.deformable_attention import DeformableAttentionProblem
from onnxbolt.problems.gemm import (
    BatchedGemmProblem,
    GemmProblem,
    GluProblem,
    MatmulProblem,
    RotaryProblem,
)
from onnxbolt.problems.group_norm import GroupNormProblem
from onnxbolt.problems.norm import (
    MAX_TABLES,
    EmbeddingNormProblem,
    HeadNormProblem,
    ModulatedNormProblem,
    NormProblem,
    TokenNormProblem,
)
from onnxbolt.problems.pool import PoolProblem, VolumePoolProblem
from onnxbolt.problems.product import Product
from onnxbolt.problems.quantize import QuantizeProblem
from onnxbolt.problems.quantized import QuantizedConvProblem, QuantizedGemmProblem
from onnxbolt.problems.squeeze_excite import SqueezeExciteProblem

__all__ = [
    "MAX_HEAD",
    "MAX_TABLES",
    "UNBOUNDED",
    "AttentionProblem",
    "BatchedGemmProblem",
    "Conv3dProblem",
    "ConvProblem",
    "ConvTranspose3dProblem",
    "ConvTransposeProblem",
    "DeformableAttentionProblem",
    "EmbeddingNormProblem",
    "GemmProblem",
    "GluProblem",
    "GroupNormProblem",
    "HeadNormProblem",
    "MatmulProblem",
    "ModulatedNormProblem",
    "NormProblem",
    "PoolProblem",
    "Problem",
    "Product",
    "QuantizeProblem",
    "QuantizedConvProblem",
    "QuantizedGemmProblem",
    "Reference",
    "RotaryProblem",
    "SqueezeExciteProblem",
    "StemCodesProblem",
    "TokenNormProblem",
    "VolumePoolProblem",
]

UNBOUNDED = 2**31 - 1  # rows: as many as there are
