"""The two products of attention, as MatMul, FusedMatMul or Einsum."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.ops.attention.scales import scaled
from onnxbolt.ops.attention.views import Arrange, by_heads, folded, heads_of

_EQUATION = re.compile(r"(\w+),(\w+)->(\w+)")


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors over one axis. Letters name axes, as in Einsum."""

    node: gs.Node
    axes: tuple[str, str]  # the letters of both operands
    result: str
    scale: float = 1.0

    @property
    def is_folded(self) -> bool:
        """True if one axis is batch and heads."""
        return len(self.result) == 3

    def operand(self, tensor: gs.Tensor) -> int | None:
        """The position of an operand; None if it is no operand, or both."""
        found = [index for index, each in enumerate(self.node.inputs[:2]) if each is tensor]
        return found[0] if len(found) == 1 else None

    def arrange(self, axes: str, wanted: str, heads: int) -> Arrange:
        """How an operand with these axes becomes [batch, heads, positions, size], or with one axis
        for batch and heads; these are `wanted`."""
        order = [axes.index(letter) for letter in wanted]
        return folded(heads, order) if self.is_folded else by_heads(order)


def product(node: gs.Node) -> Product | None:
    """The product of two tensors of the same rank, 3 or 4; None for another node."""
    ranks = {len(tensor.shape or ()) for tensor in node.inputs[:2]}
    letters = {3: "n", 4: "bh"}.get(next(iter(ranks))) if len(ranks) == 1 else None
    if letters is None:
        return None
    if node.op == "MatMul" and not node.domain:
        return Product(node, (f"{letters}ij", f"{letters}jk"), f"{letters}ik")
    if node.op == "FusedMatMul" and node.domain == "com.microsoft":
        left, right = "ji" if node.attrs.get("transA") else "ij", _right(node)
        if node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
            return None
        axes = f"{letters}{left}", f"{letters}{right}"
        return Product(node, axes, f"{letters}ik", float(node.attrs.get("alpha", 1.0)))
    return _einsum(node) if node.op == "Einsum" and not node.domain else None


def _right(node: gs.Node) -> str:
    return "kj" if node.attrs.get("transB") else "jk"


def _einsum(node: gs.Node) -> Product | None:
    """One letter is summed over, one of each operand alone stays, and the others are in both."""
    found = _EQUATION.fullmatch(str(node.attrs["equation"]).replace(" ", ""))
    if found is None or len(node.inputs) != 2:
        return None
    left, right, result = found.groups()
    if any(len(set(axes)) != len(axes) for axes in (left, right, result)):
        return None
    both, alone = set(left) & set(right), set(left) ^ set(right)
    if len(both - set(result)) != 1 or len(alone) != 2 or not alone <= set(result):
        return None
    complete = len(left) == len(right) == len(result) and set(result) <= both | alone
    return Product(node, (left, right), result) if complete and len(result) in (3, 4) else None


@dataclass(frozen=True, eq=False)
class Operands:
    """The tensors of an attention, and how each becomes [batch, heads, positions, size]."""

    q: gs.Tensor
    k: gs.Tensor
    v: gs.Tensor
    arranged: tuple[Arrange, Arrange, Arrange]
    y: Arrange  # that of the second product's result


@dataclass(frozen=True, eq=False)
class Attempt:
    """The operands of an attention and the result of its second product, if one axis for batch and
    heads, where it has such, has this number of heads."""

    operands: Operands
    y: gs.Tensor
    heads: int


def operands(
    first: Product, second: Product, probabilities: gs.Tensor, heads: int
) -> Operands | None:
    """The operands, if the first product's result is [.., queries, keys], and the second product
    sums over the keys."""
    *outer, query, key = list(first.result)
    q = next((index for index in (0, 1) if query in first.axes[index]), None)
    p = second.operand(probabilities)
    if q is None or p is None or query in first.axes[1 - q] or key in first.axes[q]:
        return None
    (depth,) = set(first.axes[0]) & set(first.axes[1]) - set(first.result)
    batch = "".join(outer)
    *others, rows, summed = list(second.axes[p])
    values, result = second.axes[1 - p], second.result
    size = set(values) - set(second.axes[p])
    if summed in result or rows not in result or any(letter not in result for letter in others):
        return None
    inner, (value,) = "".join(others), size
    return Operands(
        first.node.inputs[q],
        first.node.inputs[1 - q],
        second.node.inputs[1 - p],
        (
            first.arrange(first.axes[q], f"{batch}{query}{depth}", heads),
            first.arrange(first.axes[1 - q], f"{batch}{key}{depth}", heads),
            second.arrange(values, f"{inner}{summed}{value}", heads),
        ),
        second.arrange(result, f"{inner}{rows}{value}", heads),
    )


def heads_before(first: Product) -> Iterator[int]:
    """Numbers of heads that the operands of a product over batch x heads may have."""
    for tensor, axes in zip(first.node.inputs, first.axes, strict=False):
        yield from heads_of(tensor, axes.index(first.result[0]), scaled)
