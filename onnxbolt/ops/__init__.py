"""Fused ops: one class for each kind of op, which holds all that the package knows of it.

The registry lists the ops, and takes those of extensions (onnxbolt/extensions.py). Stages ask the
op of an anchor, of a signature or of a kind that a file holds; they name none.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxbolt import checks
from onnxbolt.ops.attention import Attention
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.conv import Conv
from onnxbolt.ops.conv_transpose import ConvTranspose
from onnxbolt.ops.deformable_attention import DeformableAttention
from onnxbolt.ops.elementwise import Elementwise
from onnxbolt.ops.gemm import Gemm
from onnxbolt.ops.glu import Glu
from onnxbolt.ops.grid_sample import GridSample
from onnxbolt.ops.group_norm import GroupNorm
from onnxbolt.ops.layout import ToNchw, ToNhwc
from onnxbolt.ops.matmul import Matmul
from onnxbolt.ops.matmul.batched import BatchedGemm
from onnxbolt.ops.norm import (
    EmbeddingLayerNorm,
    EmbeddingRmsNorm,
    HeadLayerNorm,
    HeadRmsNorm,
    LayerNorm,
    ModulatedLayerNorm,
    ModulatedRmsNorm,
    RmsNorm,
    TokenLayerNorm,
    TokenRmsNorm,
)
from onnxbolt.ops.pixel_shuffle import DepthToSpace, SpaceToDepth
from onnxbolt.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from onnxbolt.ops.quantize import Quantize
from onnxbolt.ops.quantized import (
    QuantizedConv,
    QuantizedElementwise,
    QuantizedGate,
    QuantizedGemm,
)
from onnxbolt.ops.resize import Resize
from onnxbolt.ops.rotary import Rotary
from onnxbolt.ops.squeeze_excite import SqueezeExcite
from onnxbolt.registry import Registry, cached

__all__ = [
    "ALONE",
    "CODES_ALONE",
    "CODES_GATE",
    "CODES_OF_VALUES",
    "OPS",
    "FusedOp",
    "conversion",
    "kinds",
    "named",
    "of_type",
]


class _Ops(Registry[str, FusedOp]):
    """Fused ops by name."""

    def add(self, entry: FusedOp, owner: str) -> None:
        """Add an op. Raises ValueError where another one has its name or one of its kinds, has op
        types that begin as its do, or takes the place of the same ordinary nodes."""
        for name in (entry.op_type, *entry.kinds):
            checks.name("fused op", name)
        for key, other in self.items():
            shorter, longer = sorted((entry.op_type, other.op_type), key=len)
            if longer.startswith(f"{shorter}_"):
                raise ValueError(
                    f"its fused op {entry.name} has op types that begin as {entry.op_type}, and"
                    f" those of {self._side(key)} as {other.op_type}: give it another"
                )
            if same := {*entry.kinds} & {*other.kinds}:
                raise ValueError(
                    f"its fused op {entry.name} has the kind {min(same)} of {self._side(key)}: give"
                    " it another"
                )
            if taken := {*entry.operators} & {*other.operators}:
                raise ValueError(
                    f"its fused op {entry.name} takes the place of {min(taken)}, and so does"
                    f" {self._side(key)}: leave out one of them"
                )
        super().add(entry, owner)


_GEMM = Gemm()

OPS: Registry[str, FusedOp] = _Ops(
    "fused op",
    (
        # in front of products of values, whose refusals say less
        QuantizedConv(),
        QuantizedGemm(),
        Conv(),
        ConvTranspose(),
        _GEMM,
        Glu(),
        Rotary(),
        SqueezeExcite(),
        Attention(),
        BatchedGemm(),
        Matmul(_GEMM),
        HeadLayerNorm(),  # in front of those of rows, which take what these leave
        HeadRmsNorm(),
        ModulatedLayerNorm(),
        ModulatedRmsNorm(),
        LayerNorm(),
        RmsNorm(),
        GroupNorm(),
        TokenLayerNorm(),
        TokenRmsNorm(),
        EmbeddingLayerNorm(),
        EmbeddingRmsNorm(),
        Elementwise(),
        QuantizedElementwise(),
        QuantizedGate(),
        Quantize(),
        MaxPool(),
        AveragePool(),
        GlobalAveragePool(),
        Resize(),
        DepthToSpace(),
        SpaceToDepth(),
        GridSample(),
        DeformableAttention(),
        ToNhwc(),
        ToNchw(),
    ),
    "name",
    "op_type",
)

ALONE = OPS[Elementwise.name]  # computes an epilogue without a product before it, and copies
CODES_ALONE = OPS[QuantizedElementwise.name]  # the same between codes
CODES_OF_VALUES = OPS[Quantize.name]  # makes codes of values
CODES_GATE = OPS[QuantizedGate.name]  # multiplies an image by the codes of one pixel


@cached(1)
def _by_kind() -> Mapping[str, FusedOp]:
    return {kind: op for op in OPS.values() for kind in op.kinds}


def kinds() -> frozenset[str]:
    """Every kind that a node may have in files."""
    return frozenset(_by_kind())


def named(kind: str) -> FusedOp:
    """The op whose nodes have this kind in files. Raises KeyError where there is none."""
    return _by_kind()[kind]


def of_type(op_type: str) -> FusedOp | None:
    """The op whose op types begin as this one does; None where there is none."""
    return next((op for op in OPS.values() if f"{op_type}_".startswith(f"{op.op_type}_")), None)


def conversion(to_last: bool) -> FusedOp:
    """The layout conversion that makes NHWC of NCHW, or the other one."""
    return OPS[ToNhwc.name if to_last else ToNchw.name]
