"""Patterns of single ONNX nodes that are an epilogue step, as data; onnxbolt/patterns/epilogue.py
compares nodes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxbolt.dtypes import DType


@dataclass(frozen=True)
class Pattern:
    """Nodes of operator `op`; `domain` is "" for ONNX's own."""

    op: str
    domain: str = ""


@dataclass(frozen=True)
class Unary(Pattern):
    """A function of the tensor alone. The step's parameters are the node's attributes of the same
    names, or, with `scalars`, its further inputs, which have to be constant.

    `bias`: the node may add its second input, a channel vector, before the function.
    """

    scalars: bool = False
    bias: bool = False


@dataclass(frozen=True)
class Vector(Pattern):
    """An operator of the tensor and a constant that is a channel vector or a scalar.

    `convert` returns the step's operand for the constant [channels] in float32, or the reason why
    there is none. `either_side`: the constant may be the first input. `finite_at_zero` as
    `EpilogueStep` has it.
    """

    convert: Callable[[np.ndarray], np.ndarray | str] = np.asarray
    either_side: bool = False
    finite_at_zero: bool = True


@dataclass(frozen=True)
class Tensor(Pattern):
    """A commutative operator of the tensor and another one of its shape and type."""


@dataclass(frozen=True)
class Conversion(Pattern):
    """A Cast to the element type `to`, if the epilogue computes another type; the epilogue ends
    with it."""

    op: str = "Cast"
    to: DType = DType.F32
