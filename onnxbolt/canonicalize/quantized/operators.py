"""Write products and other operators on codes as operators on values between DequantizeLinear and
QuantizeLinear:

    QLinearConv(x, w, b) = Q(Conv(DQ(x), DQ(w), DQ(b))),   QLinearAdd(a, b) = Q(DQ(a) + DQ(b))

and likewise QLinearMatMul, QGemm, and QLinearMul, QLinearConcat, QLinearWhere, QLinearLeakyRelu,
QLinearSigmoid, QLinearAveragePool and QLinearGlobalAveragePool of com.microsoft, whose
QuantizeLinear and DequantizeLinear of bytes are ONNX's. Both sides are the same function of codes.
ONNX Runtime's integer kernels multiply sums by one rounded quotient of scales, where the right side
multiplies and divides, so that a result near the middle of two codes may be the other one. With
powers of 2 as scales nothing is rounded but the result. A result exactly in the middle is the even
code before the zero point is added to it; QLinearAdd and QLinearMul of ONNX Runtime round behind.

Others stay: QLinearSoftmax and QLinearReduceMean round within, and DynamicQuantizeLinear,
ConvInteger and MatMulInteger have scales that are computed at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import (
    DEQUANTIZE,
    INTEGERS,
    QUANTIZE,
    Scaling,
    new_tensor,
    numbers_of,
)
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.edit import (
    add_constant,
    constant_values,
    insert,
    optional,
    remove,
    together,
)


def run(graph: gs.Graph) -> int:
    """Rewrite all such operators; returns how many."""
    with together(graph):
        return sum(_rewrite(graph, node) for node in list(graph.nodes))


def _rewrite(graph: gs.Graph, node: gs.Node) -> bool:
    rule = _RULES.get((node.domain or "", node.op))
    if rule is None or node.attrs.get("channels_last", 0):
        return False
    found = rule(graph, node)
    if found is None:
        return False
    _write(graph, node, found)
    return True


@dataclass(frozen=True)
class _Operand:
    """A tensor of codes, and the tensors that scale it."""

    codes: gs.Tensor
    scale: gs.Tensor
    zero: gs.Tensor | None
    axis: int | None

    @classmethod
    def of(
        cls, tensors: Sequence[gs.Tensor | None], codes: gs.Tensor | None, axis: int | None = None
    ) -> _Operand | None:
        """The operand with (scale, zero point), which vary along `axis` at most; None if one is
        missing or computed at run time, or varies otherwise."""
        scale, zero = tensors
        if codes is None or scale is None:
            return None
        _know(codes, zero)
        rank = 0 if codes.shape is None else len(codes.shape)
        numbers = numbers_of(scale, zero, codes.dtype, axis or 0, rank)
        varies = numbers is not None and numbers.axis is not None
        if numbers is None or codes.dtype not in INTEGERS or (varies and axis is None):
            return None
        return cls(codes, scale, zero, numbers.axis)

    def inputs(self, x: gs.Tensor) -> list[gs.Tensor]:
        return [x, self.scale, *([] if self.zero is None else [self.zero])]

    @property
    def attributes(self) -> dict[str, object]:
        return {} if self.axis is None else {"axis": self.axis}

    @property
    def numbers(self) -> Scaling:
        found = numbers_of(self.scale, self.zero, self.codes.dtype, 0, 1)
        assert found is not None  # the class method has looked
        return found


@dataclass(frozen=True)
class _Written:
    """An operator on values: which, of which operands in its order, and its result's scaling."""

    op: str
    operands: Sequence[_Operand | gs.Tensor]
    result: _Operand | None  # None: the result is values
    attributes: dict[str, object]


def _write(graph: gs.Graph, node: gs.Node, new: _Written) -> None:
    """Replace `node`, whose result keeps its name."""
    (y,) = node.outputs
    inputs = list[gs.Tensor]()
    for operand in new.operands:
        if not isinstance(operand, _Operand):
            inputs.append(operand)
            continue
        x = operand.codes
        values = new_tensor(graph, f"{x.name}_values", operand.scale.dtype, x.shape)
        read, extra = operand.inputs(x), operand.attributes
        insert(graph, DEQUANTIZE, read, [values], [node], extra, at=node)
        inputs.append(values)
    result = y
    if new.result is not None:
        result = new_tensor(graph, f"{y.name}_values", new.result.scale.dtype, y.shape)
    insert(graph, new.op, inputs, [result], [node], new.attributes, at=node)
    if new.result is not None:
        read, extra = new.result.inputs(result), new.result.attributes
        insert(graph, QUANTIZE, read, [y], [node], extra, at=node)
    remove(graph, [node])


def _without(node: gs.Node, *names: str) -> dict[str, object]:
    return {name: value for name, value in node.attrs.items() if name not in names}


# --- the operators --------------------------------------------------------------------------------


def _conv(graph: gs.Graph, node: gs.Node) -> _Written | None:
    x, sx, zx, w, sw, zw, sy, zy = node.inputs[:8]
    read, weight = _Operand.of((sx, zx), x), _Operand.of((sw, zw), w, axis=0)
    written = _Operand.of((sy, zy), node.outputs[0])
    if read is None or weight is None or written is None:
        return None
    operands: list[_Operand | gs.Tensor] = [read, weight]
    if (bias := optional(node.inputs, 8)) is not None:
        values = _bias(graph, bias, read, weight)
        if values is None:
            return None
        operands.append(values)
    return _Written("Conv", operands, written, _without(node, "channels_last"))


def _bias(
    graph: gs.Graph, bias: gs.Tensor, read: _Operand, weight: _Operand, alpha: float = 1.0
) -> gs.Constant | None:
    """A constant bias of int32, in units of both scales' product, as values."""
    steps = constant_values(bias)
    if steps is None or steps.dtype != np.int32:
        return None
    unit = np.float32(alpha) * read.numbers.scale * weight.numbers.scale
    values = steps.astype(np.float32) * unit.astype(np.float32)
    return add_constant(graph, f"{bias.name}_values", values)


def _matmul(graph: gs.Graph, node: gs.Node) -> _Written | None:
    a, sa, za, b, sb, zb, sy, zy = node.inputs
    columns = len(b.shape) - 1 if b.shape else None
    operands = _Operand.of((sa, za), a), _Operand.of((sb, zb), b, columns)
    written = _Operand.of((sy, zy), node.outputs[0])
    if operands[0] is None or operands[1] is None or written is None:
        return None
    return _Written("MatMul", [operands[0], operands[1]], written, {})


def _gemm(graph: gs.Graph, node: gs.Node) -> _Written | None:
    a, sa, za, b, sb, zb = node.inputs[:6]
    columns = 0 if node.attrs.get("transB", 0) else 1
    read, weight = _Operand.of((sa, za), a), _Operand.of((sb, zb), b, columns)
    sy, zy = optional(node.inputs, 7), optional(node.inputs, 8)
    written = None if sy is None else _Operand.of((sy, zy), node.outputs[0])
    if read is None or weight is None or (sy is not None and written is None):
        return None
    operands: list[_Operand | gs.Tensor] = [read, weight]
    if (bias := optional(node.inputs, 6)) is not None:
        values = _bias(graph, bias, read, weight, float(node.attrs.get("alpha", 1.0)))
        if values is None:
            return None
        operands.append(values)
    return _Written("Gemm", operands, written, dict(node.attrs))


def _binary(op: str) -> _Rule:
    def rule(graph: gs.Graph, node: gs.Node) -> _Written | None:
        a, sa, za, b, sb, zb, sy = node.inputs[:7]
        operands = _Operand.of((sa, _named(za)), a), _Operand.of((sb, _named(zb)), b)
        written = _Operand.of((sy, optional(node.inputs, 7)), node.outputs[0])
        if operands[0] is None or operands[1] is None or written is None:
            return None
        return _Written(op, [operands[0], operands[1]], written, {})

    return rule


def _unary(op: str) -> _Rule:
    def rule(graph: gs.Graph, node: gs.Node) -> _Written | None:
        x, sx, zx, sy = node.inputs[:4]
        read = _Operand.of((sx, _named(zx)), x)
        written = _Operand.of((sy, optional(node.inputs, 4)), node.outputs[0])
        if read is None or written is None:
            return None
        return _Written(op, [read], written, _without(node, "channels_last"))

    return rule


def _concat(graph: gs.Graph, node: gs.Node) -> _Written | None:
    sy, zy, *rest = node.inputs
    parts = [_Operand.of((s, _named(z)), x) for x, s, z in zip(*[iter(rest)] * 3, strict=True)]
    operands = [part for part in parts if part is not None]
    written = _Operand.of((sy, _named(zy)), node.outputs[0])
    if len(operands) != len(parts) or written is None:
        return None
    return _Written("Concat", operands, written, dict(node.attrs))


def _where(graph: gs.Graph, node: gs.Node) -> _Written | None:
    condition, x, sx, zx, y, sy, zy, sz, zz = node.inputs
    operands = _Operand.of((sx, _named(zx)), x), _Operand.of((sy, _named(zy)), y)
    written = _Operand.of((sz, _named(zz)), node.outputs[0])
    if operands[0] is None or operands[1] is None or written is None:
        return None
    return _Written("Where", [condition, operands[0], operands[1]], written, {})


def _own(graph: gs.Graph, node: gs.Node) -> _Written | None:
    """ONNX Runtime's QuantizeLinear or DequantizeLinear of bytes: ONNX's own."""
    codes = node.inputs[0] if node.op == DEQUANTIZE else node.outputs[0]
    _know(codes, optional(node.inputs, 2))
    if codes.dtype not in INTEGERS:
        return None
    return _Written(node.op, list(node.inputs), None, dict(node.attrs))


def _know(codes: gs.Tensor, zero: gs.Tensor | None) -> None:
    """Give codes the type of their zero point where inference knows none, as behind operators of
    com.microsoft."""
    if codes.dtype is None:
        codes.dtype = np.dtype(np.uint8) if zero is None else zero.dtype


def _named(tensor: gs.Tensor) -> gs.Tensor | None:
    return tensor if tensor.name else None


_Rule = Callable[[gs.Graph, gs.Node], _Written | None]
_RULES: dict[tuple[str, str], _Rule] = {
    ("", "QLinearConv"): _conv,
    (CONTRIB, "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (CONTRIB, "QGemm"): _gemm,
    (CONTRIB, "QLinearAdd"): _binary("Add"),
    (CONTRIB, "QLinearMul"): _binary("Mul"),
    (CONTRIB, "QLinearConcat"): _concat,
    (CONTRIB, "QLinearWhere"): _where,
    (CONTRIB, "QLinearAveragePool"): _unary("AveragePool"),
    (CONTRIB, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (CONTRIB, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (CONTRIB, "QLinearSigmoid"): _unary("Sigmoid"),
    (CONTRIB, QUANTIZE): _own,
    (CONTRIB, DEQUANTIZE): _own,
}
